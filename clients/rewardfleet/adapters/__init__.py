"""One file a trainer, in its own terms. None of them needs its trainer to be imported."""
