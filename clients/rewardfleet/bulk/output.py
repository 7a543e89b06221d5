"""The folder with the scores of an input: parts that are valid at any time, and a journal.

`part-00000.parquet` has the first rows, in order, and so on. A part appears when it is complete.
What is scored and in no part yet is in `journal.jsonl`, so that an interrupted command goes on
without scoring it again. `input.json` says what was scored, and how.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic_core import from_json, to_json

from rewardfleet.bulk.flat_columns import arrow_table

from .arrow import pyarrow
from .files import new_file, temporary_name
from .lines import Lines
from .records import Record, records_of
from .rows import open_sources

Format = Literal["parquet", "jsonl"]

_JOURNAL, _INPUT, _LOCK = "journal.jsonl", "input.json", ".lock"
#: A part is written when it has so many rows, or so many bytes of JSON.
PART_ROWS, _PART_BYTES = 10_000, 64 * 2**20
#: Seconds in which the process of a command that was killed ends.
_LOCK_SECONDS = 10.0


class Output:
    """The scores of an input, in a folder. Use it as a context manager, in one thread at a time.

    Args:
        folder: Is created if it does not exist.
        columns: The columns of a record, and their types; see `records.columns_of`.
        input_key: What the scores belong to; see `input.json`.
        kind: The format of the parts.
        part_rows: The rows of a part.

    Raises:
        ValueError: The folder has the scores of another input, or something else, or is in use.
        OSError: It cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, str],
        input_key: Mapping[str, Any],
        kind: Format,
        part_rows: int,
    ) -> None:
        self.folder, self._columns, self._kind = folder, columns, kind
        self._part_rows = part_rows
        self._lock = _opened(folder, {**input_key, "format": kind})
        self._parts = sorted(folder.glob(f"part-*.{kind}"))
        #: Rows before this one are in parts.
        self._next = sum(part.count() for part in open_sources(self._parts))
        #: The records that become the next part, and about how many bytes of JSON they are.
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._has_replaced = False  # the journal has newer records of rows that are in parts
        self._journal_path = folder / _JOURNAL
        self._journal = self._opened_journal()
        self._dropped_bytes = 0  # of its lines that are in parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)
        self._journal.file.close()

    def kept(self) -> tuple[int, list[int]]:
        """Return the row before which all are kept, and the other rows that are."""
        return self._end, [*self._journal.rows(self._end)]

    @property
    def _end(self) -> int:
        """The row before which all are in parts or in the next one."""
        return self._next + len(self._pending)

    def records(self) -> Iterator[Record]:
        """Yield the records that there are, those of parts first."""
        for part in self._parts:
            yield from (record for record, _ in self._newest(part))
        for row in self._journal.rows(self._next):
            yield self._read(row)[0]

    def add(self, line: bytes) -> list[Record]:
        """Keep what `encode_scores` has encoded, and write complete parts; return its records."""
        records = records_of(line, self._columns)
        lines = [(record["row"], _line(record)) for record in records]
        self._has_replaced |= min(lines)[0] < self._next
        self._journal.put(lines)
        self._journal.file.flush()
        at_hand = {row: (each, len(text)) for each, (row, text) in zip(records, lines, strict=True)}
        self._advance(at_hand)
        # All of it may wait for the first row, so at least half of it is dropped at a time.
        if 2 * self._dropped_bytes > self._journal.size:
            self._rewrite_journal()
        return records

    def finish(self) -> None:
        """Write what is left as the last part, once all rows are scored."""
        self._replace()
        self._advance({})
        if self._pending:
            self._write_part()
        self._rewrite_journal(self._next)
        if not self._journal.size:
            self._journal_path.unlink()

    def _advance(self, at_hand: Mapping[int, tuple[Record, int]]) -> None:
        """Take the rows that follow one another, and write the parts that are complete.

        Args:
            at_hand: Records that need not be read from the journal, and their bytes there.
        """
        while (row := self._end) in self._journal:
            record, size = at_hand.get(row) or self._read(row)
            self._pending.append(record)
            self._pending_bytes += size
            if len(self._pending) >= self._part_rows or self._pending_bytes >= _PART_BYTES:
                self._write_part()

    def _write_part(self) -> None:
        path = self.folder / f"part-{len(self._parts):05}.{self._kind}"
        rows = range(self._next, self._end)
        self._write(path, self._pending)
        self._parts.append(path)
        self._journal.drop(rows)
        self._dropped_bytes += self._pending_bytes
        self._next, self._pending, self._pending_bytes = self._end, [], 0

    def _read(self, row: int) -> tuple[Record, int]:
        """Return a record of the journal, and its bytes."""
        line = self._journal.get(row) or b""
        return dict.fromkeys(self._columns) | from_json(line), len(line)

    def _newest(self, part: Path) -> Iterator[tuple[Record, bool]]:
        """Yield the records of a part, or those that replace them, and whether they do."""
        for record in _read(part, self._columns):
            row = record["row"]
            is_new = self._has_replaced and row in self._journal
            yield self._read(row)[0] if is_new else record, is_new

    def _replace(self) -> None:
        """Write the parts again that have rows with new records."""
        for part in self._parts if self._has_replaced else ():
            found = [*self._newest(part)]
            if any(is_new for _, is_new in found):
                self._write(part, [record for record, _ in found])
        self._has_replaced = False

    def _write(self, path: Path, records: list[Record]) -> None:
        with new_file(path) as file:
            if self._kind == "jsonl":
                file.writelines(map(_line, records))
            else:
                pyarrow().parquet.write_table(arrow_table(records, self._columns), file)

    def _rewrite_journal(self, start: int = 0) -> None:
        """Drop the lines of the journal that are in parts, and those of rows before one."""
        with new_file(self._journal_path) as file:
            file.writelines(self._journal.get(row) or b"" for row in self._journal.rows(start))
        self._journal = self._opened_journal()
        self._dropped_bytes = 0

    def _opened_journal(self) -> Lines:
        """Open the journal; its last line may be incomplete, if the command was killed."""
        lines = Lines(self._journal_path)
        lines.file.seek(0)
        for line in lines.file:
            if line.endswith(b"\n"):
                row = from_json(line)["row"]
                self._has_replaced |= row < self._next
                lines.found(row, line)
        lines.file.truncate(lines.size)  # a full disk allows that
        return lines


def _opened(folder: Path, key: Mapping[str, Any]) -> int:
    """Lock a folder for an input until the result is closed; see `Output` for errors."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _INPUT
    _check_input(path, key)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for_lock(lock, folder)
        _check_input(path, key)  # another command may have been here first
        with new_file(path) as file:
            file.write(json.dumps(key, indent=1).encode())
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait_for_lock(lock: int, folder: Path) -> None:
    give_up = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise ValueError(f"{folder}: another command is writing there") from None
            time.sleep(0.05)


def _check_input(path: Path, key: Mapping[str, Any]) -> None:
    """Check that a folder belongs to an input, which its `input.json` says, or is empty."""
    folder = path.parent
    if path.exists():
        try:
            found = json.loads(path.read_text())
            other = [name for name in key if found.get(name) != json.loads(json.dumps(key[name]))]
        except (ValueError, AttributeError):
            raise ValueError(f"{path} is not of this command: give another -o") from None
        if other:
            raise ValueError(
                f"{folder} has the scores of another input or other options "
                f"({', '.join(other)} differ, see {path}): give another -o"
            )
    elif any(each.name not in {_LOCK, temporary_name(path)} for each in folder.iterdir()):
        raise ValueError(f"{folder} has other files: give a new or an empty folder")


def _read(part: Path, columns: Mapping[str, str]) -> Iterator[Record]:
    if part.suffix == ".jsonl":
        with part.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
        return
    texts = [name for name, kind in columns.items() if kind == "json"]
    with pyarrow().parquet.ParquetFile(part) as file:
        for batch in file.iter_batches(batch_size=1000):
            for record in batch.to_pylist(maps_as_pydicts="strict"):
                yield record | {name: json.loads(record.get(name) or "null") for name in texts}


class Printer:
    """Prints records to the standard output, in order of their rows, and keeps none.

    Args:
        columns: The columns of a record.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = list(columns)
        self._next, self._count = 0, 0
        self._later = Lines()

    def add(self, line: bytes) -> list[Record]:
        """Print what `encode_scores` has encoded and what waited for it; return its records."""
        records = records_of(line, self._columns)
        # ASCII: a terminal must not obey characters that a policy wrote.
        lines = [(each["row"], json.dumps(each).encode() + b"\n") for each in records]
        self._count += len(lines)
        for row, text in lines:
            if row == self._next:
                self._print(text)
        self._later.put([each for each in lines if each[0] >= self._next])
        while (following := self._later.get(self._next)) is not None:
            self._print(following)
        if self._next == self._count and self._later.size:  # nothing waits
            self._later = Lines()
        return records

    def _print(self, line: bytes) -> None:
        sys.stdout.buffer.write(line)
        self._next += 1

    def finish(self) -> None:
        """Flush the output."""
        sys.stdout.buffer.flush()


def _line(record: Record) -> bytes:
    return to_json(record) + b"\n"
