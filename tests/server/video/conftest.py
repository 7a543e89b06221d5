"""Calibrations of the fake judge."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...conftest import DATA


@pytest.fixture
def write_calibration(tmp_path: Path) -> Callable[..., Path]:
    """Return the function that writes a calibration of the fake judge, with changes of it.

    Fields that are none of the calibration are of its binding.
    """

    def calibration(name: str = "calibration.json", **changes: Any) -> Path:
        content = json.loads((DATA / "video" / "calibration.json").read_text())
        for field, value in changes.items():
            (content if field in content else content["binding"])[field] = value
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return calibration
