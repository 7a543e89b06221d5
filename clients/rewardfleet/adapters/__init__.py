"""One module per trainer, in its own terms. None of them imports its trainer at import time."""
