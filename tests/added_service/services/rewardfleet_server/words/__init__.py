"""A service of the tests, which counts words."""
