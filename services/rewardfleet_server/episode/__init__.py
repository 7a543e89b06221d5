"""The episode service."""
