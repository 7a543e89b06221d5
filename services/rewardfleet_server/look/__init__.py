"""The page of `rewardfleet look`: what was scored, for people to filter, compare and label."""
