"""The command `rewardfleet`, and the commands that need no server."""
