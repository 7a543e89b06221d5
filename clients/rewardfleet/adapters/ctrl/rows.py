"""CTRL's training files: from Parquet or JSON lines to rows.

CTRL's `cleanup_rl.py` writes a row per program: `id`, `problem`, `solution`, `prompter_type`, and
the tests in `selected_uts`. Each becomes a row of `CritiqueReward`, whose `tests` are a dataset row
that the code service reads. Rows with a column `tests` keep it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rewardfleet.bulk import rows
from rewardfleet.rows import SampleRow
from rewardfleet.wire.truth import given

#: The values of `prompter_type`, which are also the names of the datasets of the tests.
_DATASETS = ("code_contests", "mbppplus", "livecodebench")
#: The columns that the code service reads in such rows; others may be large.
_TEST_COLUMNS = ("selected_uts", "all_uts", "test", "labels", "content", "time_limit")


def read_rows(files: str | Path | Iterable[str | Path]) -> list[SampleRow]:
    """Read training files of CTRL.

    Args:
        files: One or more, `.parquet` (needs pyarrow), `.jsonl` or another table of
            `rewardfleet score`.

    Returns:
        Rows for `CritiqueReward`.

    Raises:
        ValueError: A row has neither `tests` nor a `prompter_type` of CTRL, a column is missing, or
            a row cannot be read.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    return [_row(each.fields, each.place) for path in paths for each in rows.read_rows(Path(path))]


def _row(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    row = given(record)
    for name in ("id", "problem", "solution"):
        if name not in row:
            raise ValueError(f"{place}: `{name}` is missing")
    if "tests" in row:
        return row
    kind = row.get("prompter_type")
    if kind not in _DATASETS:
        raise ValueError(f"{place}: has no `tests`, and prompter_type is {kind!r}, "
                         f"not {', '.join(_DATASETS)}")  # fmt: skip
    columns = given(row, _TEST_COLUMNS)
    if kind == "livecodebench":  # whose tests CTRL moves to `selected_uts` when it writes the file
        columns.setdefault("test", columns.pop("selected_uts", None))
    return {**row, "tests": {"kind": "dataset", "dataset": kind, "row": columns}}
