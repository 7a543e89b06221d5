"""All request and response models. Client and server import them; they import pydantic only."""
