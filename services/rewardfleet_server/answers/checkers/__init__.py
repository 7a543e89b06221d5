"""What compares answers in the worker processes; none of it imports the service."""
