"""Deleting the records of a run, also while services write to the log."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardfleet.bulk.arrow import pyarrow
from rewardfleet.bulk.files import OWNER_ONLY, new_file

from .segments import CLOSED, ask_to_close, if_closed, open_segments, replacing, segments

#: Seconds for writers to close their segments, and for readers to end.
_WAIT_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


@dataclass
class Deleted:
    """What was deleted."""

    records: int = 0
    #: The segments that could not be searched, and why.
    left: dict[Path, str] = field(default_factory=dict)


def delete_run(folder: Path, run: str) -> Deleted:
    """Delete all records of a run that were written before this call.

    Writers of the log begin new segments, so that those they have can be replaced.
    """
    deleted = Deleted()
    todo = {*segments(folder), *open_segments(folder)}
    ask_to_close(folder)
    give_up = time.monotonic() + _WAIT_SECONDS
    while todo:
        deleted.left = {}
        for path in sorted(todo):
            try:
                with replacing(folder, waits=False):
                    count = _delete_from(path, run)
            except BlockingIOError:
                deleted.left[path] = "another command reads it"
                continue
            if count is None:
                deleted.left[path] = "its writer does not close it"
            else:
                deleted.records += count
                todo.discard(path)
        # A segment may have been rewritten meanwhile.
        todo |= {path.with_suffix(CLOSED) for path in todo if path.with_suffix(CLOSED).exists()}
        if not todo or time.monotonic() > give_up:
            break
        time.sleep(_PAUSE_SECONDS)
    return deleted


def _delete_from(path: Path, run: str) -> int | None:
    """Return how many records of a run a segment had; None if it cannot be replaced now."""
    if path.suffix == CLOSED:
        return _delete_rows(path, run) if path.exists() else 0
    with if_closed(path) as closed:
        if not closed:
            return None if path.exists() else _delete_from(path.with_suffix(CLOSED), run)
        if path.with_suffix(CLOSED).exists():  # which counts: see `segments`
            path.unlink()
            return 0
        return _delete_lines(path, run)


def _delete_rows(path: Path, run: str) -> int:
    pa = pyarrow()
    with pa.parquet.ParquetFile(path) as table:
        runs = [each for batch in table.iter_batches(columns=["run"]) for each in _runs_of(batch)]
        count = runs.count(run)
        if 0 < count < len(runs):
            with (
                new_file(path, OWNER_ONLY) as file,
                pa.parquet.ParquetWriter(file, table.schema_arrow, compression="zstd") as writer,
            ):
                for batch in table.iter_batches(batch_size=1000):
                    kept = pa.array([each != run for each in _runs_of(batch)], pa.bool_())
                    writer.write_batch(batch.filter(kept))
    if count == len(runs):
        path.unlink()
    return count


def _runs_of(batch: Any) -> list[str | None]:
    runs: list[str | None] = batch.column("run").to_pylist()
    return runs


def _delete_lines(path: Path, run: str) -> int:
    count = 0

    def others() -> Iterator[bytes]:
        nonlocal count
        with path.open("rb") as file:
            for line in file:
                try:
                    has_run = json.loads(line)["run"] == run
                except (ValueError, TypeError, KeyError):
                    continue  # of a process that was killed
                count += has_run
                if not has_run:
                    yield line

    with new_file(path, OWNER_ONLY) as file:
        file.writelines(others())
    return count
