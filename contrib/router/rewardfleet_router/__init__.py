"""The router: a head on an actor language model that decides whether a prompt may use tools.

`routes` and `labels` need no torch; `head`, `batch`, `objective`, `inference` and `train` do.
"""

__version__ = "0.1.0"
