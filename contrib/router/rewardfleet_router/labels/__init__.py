"""Labels of rows, made offline: reading them (`row_labels`), and `rewardfleet-router label`."""
