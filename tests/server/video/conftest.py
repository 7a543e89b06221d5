"""Calibrations of the fake judge."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_calibration(tmp_path: Path) -> Callable[..., Path]:
    """Return the function that writes a calibration of the fake judge, with changes of it.

    Fields that are none of the calibration are of its binding.
    """

    def calibration(name: str = "calibration.json", **changes: Any) -> Path:
        binding = {
            "backend": "fake", "provenance": {"judge": "fake", "score": 0.25}, "nframes": 16,
            "max_pixels": 200_704, "backend_kwargs": {}, "camera": None, "frame_sizes": [[24, 32]],
        }  # fmt: skip
        threshold = {
            "value": 0.7, "false_positive_rate": 0.05, "confidence": 0.95,
            "failures": 59, "accepted": 0, "successes": 10, "found": 9,
        }  # fmt: skip
        content: dict[str, Any] = {
            "format": "rewardfleet calibration 1",
            "map": {"kind": "isotonic", "scores": [0.0, 0.5], "values": [0.2, 0.8]},
            "checked": {},
            "binding": binding,
            "threshold": threshold,
            "distribution": None,
        }
        for field, value in changes.items():
            (content if field in content else binding)[field] = value
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return calibration
