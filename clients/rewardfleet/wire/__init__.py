"""The one home of request and response models. Everyone imports it; it imports pydantic only."""
