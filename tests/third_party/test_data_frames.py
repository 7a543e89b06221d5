"""Data frames of pandas cross the boundary of the code service's jail as values."""

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from ..server.code.conftest import Service, rows, sample, served_code
from ..server.code.test_boundary import check_decided_outside

pytest.importorskip("pandas")
pytestmark = [pytest.mark.slow, pytest.mark.slice]


@pytest.fixture(scope="module")
def frames_service() -> Iterator[Service]:
    with served_code(packages=f"numpy,pandas=={version('pandas')}") as service:
        yield service


@pytest.mark.parametrize("row", sample(rows("boundary", "pandas")))
def test_what_programs_do_with_frames_is_decided_by_the_process_of_the_tests(
    frames_service: Service, row: dict[str, str]
):
    check_decided_outside(frames_service, row, setup="import pandas as pd")
