"""CTRL's training files: from Parquet or JSON lines to rows.

CTRL's `cleanup_rl.py` writes a row per program: `id`, `problem`, `solution`, `prompter_type`, and
the tests in `selected_uts`. Each becomes a row of `CritiqueReward`, whose `tests` are a dataset row
that the code service reads. Rows with a column `tests` keep it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rewardfleet.bulk import rows
from rewardfleet.rows import SampleRow
from rewardfleet.wire.truth import is_missing

#: The values of `prompter_type`, which are also the names of the datasets of the tests.
_DATASETS = ("code_contests", "mbppplus", "livecodebench")
#: The columns that the code service reads in such rows; others may be large.
_TEST_COLUMNS = ("selected_uts", "all_uts", "test", "labels", "content", "time_limit")
#: The columns that a row keeps.
_COLUMNS = (
    "id", "problem", "solution", "tests", "prompt", "prompter_type", "mode", "limits",
    "original_program", "original_passed",
)  # fmt: skip
#: Arguments and results of calls, in which a null is a value.
_VALUES = {"args", "expected"}


def read_rows(files: str | Path | Iterable[str | Path]) -> list[SampleRow]:
    """Read training files of CTRL.

    Args:
        files: One or more, `.parquet` (needs pyarrow), `.jsonl` or another table of
            `rewardfleet score`.

    Returns:
        Rows for `CritiqueReward`, with plain lists, and without missing values.

    Raises:
        ValueError: A row has neither `tests` nor a `prompter_type` of CTRL, a column is missing, or
            a row cannot be read.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    return [_row(each.fields, each.place) for path in paths for each in rows.read_rows(Path(path))]


def without_nulls(value: Any) -> Any:
    """Return lists for arrays, and dictionaries without missing fields, nested ones included.

    Parquet gives each dictionary of a column all fields of the others. pandas has arrays for its
    lists, and NaN for a null among numbers.
    """
    if isinstance(value, Mapping):
        return {
            name: field if name in _VALUES and not isinstance(field, np.ndarray)
            else without_nulls(field)
            for name, field in value.items()
            if name in _VALUES or not is_missing(field)
        }  # fmt: skip
    if isinstance(value, np.ndarray | np.generic):
        return without_nulls(value.tolist())
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def _row(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    row = {name: record[name] for name in _COLUMNS if record.get(name) is not None}
    for name in ("id", "problem", "solution"):
        if name not in row:
            raise ValueError(f"{place}: `{name}` is missing")
    if "tests" in row:
        return {**row, "tests": without_nulls(row["tests"])}
    kind = record.get("prompter_type")
    if kind not in _DATASETS:
        raise ValueError(f"{place}: has no `tests`, and prompter_type is {kind!r}, "
                         f"not {', '.join(_DATASETS)}")  # fmt: skip
    columns = without_nulls({name: record.get(name) for name in _TEST_COLUMNS})
    if kind == "livecodebench":  # whose tests CTRL moves to `selected_uts` when it writes the file
        columns.setdefault("test", columns.pop("selected_uts", None))
    return {**row, "tests": {"kind": "dataset", "dataset": kind, "row": columns}}
