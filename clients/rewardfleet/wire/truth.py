"""Rows of data sets: which columns have the ground truth, and which values are missing."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

#: Columns with a ground truth in rows of trainers; the first that a row has counts.
TRUTH_COLUMNS = (
    "tests", "ground_truth", "label", "reference_answer", "verification_info", "unit_tests",
    "answer",
)  # fmt: skip
#: Columns that contain a row with such columns.
NESTED_COLUMNS = ("verifier_metadata", "reward_model", "reward_spec", "metadata")
#: Those of all these that hold something else in rows of data sets.
AMBIGUOUS_COLUMNS = frozenset({"label", "reference_answer", "answer", "metadata"})


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
