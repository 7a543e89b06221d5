"""A real code service, with its jail, and one that is down."""

from ..adapters.conftest import closes, code_url, lost_url  # noqa: F401 - fixtures
