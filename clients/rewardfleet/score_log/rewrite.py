"""Closed segments become Parquet files, in a process of their own, as that takes seconds."""

import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rewardfleet.bulk.arrow import pyarrow
from rewardfleet.bulk.files import OWNER_ONLY, new_file
from rewardfleet.bulk.flat_columns import arrow_table

from .record import COLUMNS, Record
from .segments import CLOSED, if_closed, replacing

#: Rows of a table that is written at a time, and bytes of their lines.
_ROWS, _BYTES = 1000, 8 * 2**20
#: Seconds after which the process ends, whatever it waits for.
_SECONDS = 300
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import main; main(sys.argv[2])"
)


def can_rewrite() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def start_rewriting(path: Path) -> "subprocess.Popen[bytes]":
    """Start a process that calls `rewrite`."""
    return subprocess.Popen(  # noqa: S603 - a fixed program
        [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main(path: str) -> None:
    """Rewrite a segment in a process of its own."""
    signal.alarm(_SECONDS)
    os.nice(19)
    rewrite(Path(path))


def rewrite(path: Path) -> None:
    """Replace a segment by a Parquet file, unless another process writes or replaces it now."""
    with if_closed(path) as closed:
        if not closed:
            return
        target = path.with_suffix(CLOSED)
        if not target.exists():  # else the process that has written it was killed
            write_parquet(records_of(path), target)
        with replacing(path.parent):
            path.unlink(missing_ok=True)


def records_of(path: Path) -> Iterator[tuple[Record, int]]:
    """Yield the records of a segment of JSON lines, each with its size.

    What is no record is left out, as the last line of a process that was killed. So are damaged
    frames.
    """
    empty = dict.fromkeys(COLUMNS)
    with path.open("rb") as file:
        for line in file:
            try:
                record = empty | json.loads(line)
            except (ValueError, TypeError):
                continue
            if record["frames"] is not None:
                try:
                    record["frames"] = b64decode(record["frames"], validate=True)
                except (ValueError, TypeError):
                    record["frames"] = None
            yield record, len(line)


def write_parquet(records: Iterable[tuple[Record, int]], target: Path) -> None:
    """Write records, each with its size, to a Parquet file, which is there when it is complete."""
    pa = pyarrow()
    schema = arrow_table([], COLUMNS).schema
    rows: list[Record] = []
    size = 0
    with (
        new_file(target, OWNER_ONLY) as file,
        pa.parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for record, length in records:
            rows.append(record)
            size += length
            if len(rows) >= _ROWS or size >= _BYTES:
                writer.write_table(arrow_table(rows, COLUMNS))
                rows, size = [], 0
        writer.write_table(arrow_table(rows, COLUMNS))
