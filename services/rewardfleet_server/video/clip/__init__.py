"""The clip of a request: found, checked, and decoded into frames."""
