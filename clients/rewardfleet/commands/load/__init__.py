"""`rewardfleet load`: an open-loop load generator for any fleet."""
