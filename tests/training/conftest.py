"""A real code service, with its jail."""

from ..adapters.conftest import code_url  # noqa: F401 - a fixture
