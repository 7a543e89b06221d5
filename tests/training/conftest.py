"""A real code service, with its jail, and an address that refuses connections."""

from ..adapters.conftest import closes, code_url, lost_url  # noqa: F401 - fixtures
