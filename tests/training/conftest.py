"""A real code service, with its jail."""

import pytest

from ..server.code.conftest import served_code


@pytest.fixture(scope="session")
def code_url():
    with served_code(workers=2) as service:
        yield str(service.client.base_url)
