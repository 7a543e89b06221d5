"""The video service: a judge scores the clip of a rollout."""
