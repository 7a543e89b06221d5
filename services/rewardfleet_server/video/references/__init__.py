"""Labeled rollouts, and the comparison of a clip with them."""
