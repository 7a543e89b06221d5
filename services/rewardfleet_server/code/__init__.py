"""The code service: scores programs by running them on tests."""
