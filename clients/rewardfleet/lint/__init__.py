"""`rewardfleet lint`: rows of a data set that pay what is wrong, or pay nothing."""
