"""Raw rows of datasets, read as tests of the code service."""
