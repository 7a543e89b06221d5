"""Calibrations of the fake judge, and how well scores tell failures."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardfleet.evaluation.metrics import auroc

from ...conftest import DATA


def separation(successes: Sequence[float], failures: Sequence[float]) -> float | None:
    """Return the AUROC of scores."""
    labels = np.repeat([True, False], [len(successes), len(failures)])
    return auroc(labels, np.array([*successes, *failures]))


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
