"""HTTP: the only package that imports Starlette and FastAPI."""
