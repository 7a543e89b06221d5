"""One file a trainer. Each imports its trainer, and torch, only when it is used."""
