"""`rewardfleet tools label`: labels of datasets for the router, made offline."""
