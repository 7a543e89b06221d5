"""Metrics, traces, logs and the samples in flight."""
