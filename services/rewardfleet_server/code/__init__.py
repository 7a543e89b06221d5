"""The code service: a program goes in, the share of its tests that it passes comes out."""
