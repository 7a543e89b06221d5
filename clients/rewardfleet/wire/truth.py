"""Rows of data sets: which columns have the ground truth, and which values are missing."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

#: Columns with a ground truth: that of this project, then those of data sets.
TRUTH_COLUMNS = ("tests", "ground_truth", "verification_info", "unit_tests")
#: Those that hold one in rows of trainers only. In others, they hold something else.
TRAINERS_TRUTH_COLUMNS = (*TRUTH_COLUMNS, "label", "reference_answer", "answer")
#: Columns that contain a row with such columns.
NESTED_COLUMNS = ("reward_model", "verifier_metadata", "reward_spec", "metadata")


def is_missing(value: Any) -> bool:
    """Return whether a value is null, or NaN, as pandas has it for a null among numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def given(row: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the columns of a row that are not missing; of some names, or all."""
    names = row if names is None else names
    return {name: row[name] for name in names if not is_missing(row.get(name))}


def parsed(value: Any) -> Any:
    """Return what a text is the JSON of; the value itself if it is no text, or not JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
