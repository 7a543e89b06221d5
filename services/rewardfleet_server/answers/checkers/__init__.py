"""What compares answers in the worker processes."""
