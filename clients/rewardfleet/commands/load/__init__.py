"""`rewardfleet load`: what a fleet does at a given rate."""
