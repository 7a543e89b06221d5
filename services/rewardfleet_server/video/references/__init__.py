"""Labelled rollouts, and how a clip is compared with them."""
