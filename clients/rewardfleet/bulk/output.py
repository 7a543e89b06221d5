"""The folder with the scores of an input: parts that are valid at any time, and a journal.

`part-00000.parquet` has the first rows, in order, and so on. A part appears when it is complete.
What is scored and in no part yet is in `journal.jsonl`, so that an interrupted command goes on
without scoring it again: a line has a record, or several as they arrived. `input.json` says what
was scored, and how.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic_core import to_json

from rewardfleet.bulk.flat_columns import arrow_table

from .arrow import pyarrow
from .files import new_file, temporary_name
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
        #: Records that are in no part, and the bytes of their lines in the journal.
        self._later: dict[int, tuple[Record, int]] = {}
        self._later_bytes = 0
        self._pending, self._pending_bytes = 0, 0  # those of them that follow the last part
        #: New records of rows that are in parts already.
        self._replaced: dict[int, Record] = {}
        self._journal_path = folder / _JOURNAL
        self._load_journal()
        self._journal = self._journal_path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        os.close(self._lock)

    def kept(self) -> tuple[int, list[int]]:
        """Return the row before which all are in parts, and those that are kept and in no part."""
        return self._next, list(self._later)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the records that are in memory until an earlier row is scored."""
        return self._later_bytes - self._pending_bytes

    def records(self) -> Iterator[Record]:
        """Yield the records that there are, those of parts first."""
        for part in self._parts:
            for record in _read(part, self._columns):
                yield self._replaced.get(record["row"], record)
        for record, _ in self._later.values():
            yield record

    def add(self, line: bytes) -> list[Record]:
        """Keep what `encode_scores` has encoded, and write a part if it is complete.

        Returns:
            Its records.
        """
        records = records_of(line, self._columns)
        rest = memoryview(line)
        while rest:  # a full disk takes a part of it, and then raises
            rest = rest[self._journal.write(rest) :]
        self._keep(records, len(line))
        if self._pending >= self._part_rows or self._pending_bytes >= _PART_BYTES:
            self._write_part()
        return records

    def finish(self) -> None:
        """Write what is left as the last part, once all rows are scored."""
        self._replace()
        if self._pending:
            self._write_part()
        if not self._later:
            self._journal_path.unlink(missing_ok=True)

    def _keep(self, records: Sequence[Record], total: int) -> None:
        for record in records:
            row, size = record["row"], total // len(records)
            if row < self._next:
                self._replaced[row] = record
                continue
            self._later[row] = record, size
            self._later_bytes += size
            while (following := self._later.get(self._next + self._pending)) is not None:
                self._pending += 1
                self._pending_bytes += following[1]

    def _write_part(self) -> None:
        rows = range(self._next, self._next + self._pending)
        path = self.folder / f"part-{len(self._parts):05}.{self._kind}"
        self._write(path, [self._later.pop(row)[0] for row in rows])
        self._parts.append(path)
        self._later_bytes -= self._pending_bytes
        self._next, self._pending, self._pending_bytes = rows.stop, 0, 0
        self._rewrite_journal()

    def _replace(self) -> None:
        """Write the parts again that have rows with new records."""
        for part in self._parts if self._replaced else ():
            records = {each["row"]: each for each in _read(part, self._columns)}
            if new := records.keys() & self._replaced.keys():
                records |= {row: self._replaced[row] for row in new}
                self._write(part, list(records.values()))
        self._replaced.clear()

    def _write(self, path: Path, records: list[Record]) -> None:
        with new_file(path) as file:
            if self._kind == "jsonl":
                file.writelines(map(_line, records))
            else:
                pyarrow().parquet.write_table(arrow_table(records, self._columns), file)

    def _rewrite_journal(self) -> None:
        """Drop the lines of the journal that are in parts."""
        left = [*self._replaced.values(), *(record for record, _ in self._later.values())]
        with new_file(self._journal_path) as file:
            file.writelines(map(_line, left))
        self._journal.close()
        self._journal = self._journal_path.open("ab", buffering=0)

    def _load_journal(self) -> None:
        """Read the journal; its last line may be incomplete, if the command was killed."""
        if not self._journal_path.exists():
            return
        content = self._journal_path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        empty: Record = dict.fromkeys(self._columns)
        for line in lines:
            is_several = line.startswith(b"[")
            records = records_of(line, empty) if is_several else [empty | json.loads(line)]
            self._keep(records, len(line))
        os.truncate(self._journal_path, sum(map(len, lines)))  # a full disk allows that


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
        self._next = 0
        self._later: dict[int, bytes] = {}
        self.waiting_bytes = 0  #: of the records that are in memory until an earlier row is scored

    def add(self, line: bytes) -> list[Record]:
        """Print what `encode_scores` has encoded, and what has waited for it.

        Returns:
            Its records.
        """
        records = records_of(line, self._columns)
        for record in records:
            # ASCII: a terminal must not obey characters that a policy wrote.
            self._later[record["row"]] = line = json.dumps(record).encode() + b"\n"
            self.waiting_bytes += len(line)
        while (following := self._later.pop(self._next, None)) is not None:
            sys.stdout.buffer.write(following)
            self.waiting_bytes -= len(following)
            self._next += 1
        return records

    def finish(self) -> None:
        """Flush the output."""
        sys.stdout.buffer.flush()


def _line(record: Record) -> bytes:
    return to_json(record) + b"\n"
