"""The services of rewardfleet. Importing this package imports no third-party server package."""
