"""The video service: a rollout's clip goes in, the judgment of a backend comes out."""
