"""The folder with the scores of an input: a journal while a command runs, and then parts.

`journal.jsonl` has what is scored, in any order, so that an interrupted command goes on without
scoring it again. Once all is scored, it becomes parts: `part-00000.parquet` has the first rows, in
order, and so on. Where a row is in both, the journal counts. `input.json` says what was scored, and
how.
"""

import fcntl
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json, to_json

from rewardfleet.bulk.arrow import arrow_table
from rewardfleet.score_log.record import Record, decoded

from .arrow import pyarrow
from .files import new_file, temporary_name
from .lines import Lines
from .records import ITEM_COLUMNS

Format = Literal["parquet", "jsonl"]

_JOURNAL, _INPUT, _LOCK = "journal.jsonl", "input.json", ".lock"
#: A part ends when it has so many rows, or so many bytes of JSON.
_PART_ROWS, _PART_BYTES = 10_000, 64 * 2**20
#: Rows that are objects in memory at a time: of more, the conversion takes a third longer.
_SLICE = 500


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the records of an output, whose `details` are fields of their own."""
    for record in itertools.chain.from_iterable(map(_read, sorted(folder.glob("part-*")))):
        yield {**record, "details": {}, **from_json(record["details"])}


class Output:
    """The scores of an input, in a folder. Close it; use it in one thread at a time.

    Args:
        folder: Is created if it does not exist.
        input_key: What the scores belong to; see `input.json`.
        kind: The format of the parts.

    Raises:
        ValueError: The folder has the scores of another input, or something else, or is in use.
        OSError: It cannot be written.
    """

    def __init__(self, folder: Path, input_key: Mapping[str, Any], kind: Format) -> None:
        self.folder, self._kind = folder, kind
        self._lock = _opened(folder, {**input_key, "format": kind})
        self._journal_path = folder / _JOURNAL
        self._journal = _opened_journal(self._journal_path)

    def close(self) -> None:
        """Let other commands write to the folder."""
        with self._naming_the_folder(), os.fdopen(self._lock):
            self._journal.file.close()  # which writes what a full disk has not taken

    def records(self) -> Iterator[Record]:
        """Yield the records that there are, those of parts first."""
        yield from self._records_of_parts()
        for row in self._journal.rows():
            yield from_json(self._journal.get(row) or b"")

    def add(self, records: Iterable[Record]) -> None:
        """Keep records, also of rows that are there already.

        Raises:
            OSError: They cannot be written.
        """
        with self._naming_the_folder():
            self._put(records)

    def finish(self) -> None:
        """Make parts of the journal, once all rows are scored.

        Raises:
            OSError: They cannot be written; the journal stays.
        """
        with self._naming_the_folder():
            if self._journal.size:
                self._put(self._records_of_parts())
                os.fsync(self._journal.file.fileno())  # parts are replaced one by one
                before = self._parts()
                count = 0
                for count, lines in enumerate(self._lines_of_parts(), 1):
                    self._write(self.folder / f"part-{count - 1:05}.{self._kind}", lines)
                for path in before[count:]:
                    path.unlink()
            self._journal_path.unlink()

    def _put(self, records: Iterable[Record]) -> None:
        self._journal.put((each["row"], _line(each)) for each in records)
        self._journal.file.flush()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(f"part-*.{self._kind}"))

    def _records_of_parts(self) -> Iterator[Record]:
        """Yield the records of parts that the journal has no newer ones of."""
        for part in self._parts():
            for record in _read(part):
                if record["row"] not in self._journal:
                    yield record

    def _lines_of_parts(self) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        size = 0
        for row in self._journal.rows():
            lines.append(self._journal.get(row) or b"")
            size += len(lines[-1])
            if len(lines) >= _PART_ROWS or size >= _PART_BYTES:
                yield lines
                lines, size = [], 0
        if lines:
            yield lines

    def _write(self, path: Path, lines: list[bytes]) -> None:
        with new_file(path) as file:
            if self._kind == "jsonl":
                file.writelines(lines)
            else:
                pa = pyarrow()
                slices = (lines[at : at + _SLICE] for at in range(0, len(lines), _SLICE))
                tables = [arrow_table([*map(from_json, s)], ITEM_COLUMNS) for s in slices]
                pa.parquet.write_table(pa.concat_tables(tables), file)

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = error.filename or self.folder
            raise OSError(error.errno, error.strerror, str(name)) from None


def _opened_journal(path: Path) -> Lines:
    """Open a journal, whose last line may be incomplete, if the command was killed."""
    lines = Lines(path)
    lines.file.seek(0)
    for line in lines.file:
        if line.endswith(b"\n"):
            lines.found(from_json(line)["row"], line)
    lines.file.truncate(lines.size)  # a full disk allows that
    return lines


def _opened(folder: Path, key: Mapping[str, Any]) -> int:
    """Lock a folder for an input until the result is closed; see `Output` for errors."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _INPUT
    _outdated(path, key)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for old in _outdated(path, key):  # again: another command may have been here first
            old.unlink()
        with new_file(path) as file:
            file.write(json.dumps(key, indent=1).encode())
    except BlockingIOError:
        os.close(lock)
        raise ValueError(f"{folder}: another command is writing there") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _outdated(path: Path, key: Mapping[str, Any]) -> list[Path]:
    """Check that a folder belongs to an input, which its `input.json` says, or has no scores.

    Return its files of another input, all of which failed.
    """
    folder = path.parent
    if path.exists() and (other := _differences(path, key)):
        found = [*folder.glob("part-*"), *folder.glob(_JOURNAL)]
        if any(record["status"] != "error" for each in found for record in _read(each)):
            raise ValueError(
                f"{folder} has the scores of another input or other options "
                f"({', '.join(other)} differ, see {path}): give another -o"
            )
        return found
    own = {_LOCK, temporary_name(path)}
    if not path.exists() and any(each.name not in own for each in folder.iterdir()):
        raise ValueError(f"{folder} has other files: give a new or an empty folder")
    return []


def _differences(path: Path, key: Mapping[str, Any]) -> list[str]:
    """Return what of an `input.json` is different.

    Raises:
        ValueError: It is not one.
    """
    try:
        found = json.loads(path.read_text())
        return [name for name in key if found.get(name) != json.loads(json.dumps(key[name]))]
    except (ValueError, AttributeError):
        raise ValueError(f"{path} is not of this command: give another -o") from None


def _read(part: Path) -> Iterator[Record]:
    if part.suffix == ".jsonl":
        with part.open("rb") as file:  # whose last line may be incomplete
            yield from (from_json(line) for line in file if line.endswith(b"\n"))
        return
    texts = [name for name, kind in ITEM_COLUMNS.items() if kind == "json"]
    with pyarrow().parquet.ParquetFile(part) as file:
        for batch in file.iter_batches(batch_size=1000):
            for record in batch.to_pylist(maps_as_pydicts="strict"):
                yield record | {name: json.loads(record.get(name) or "null") for name in texts}


class Printer:
    """Prints records to the standard output, in order of their rows, and keeps none."""

    def __init__(self) -> None:
        self._next, self._count = 0, 0
        self._later = Lines()

    def add(self, records: Iterable[Record]) -> None:
        """Print records, and what waited for them."""
        # ASCII: a terminal must not obey characters that a policy wrote.
        lines = [(each["row"], json.dumps(decoded(each)).encode() + b"\n") for each in records]
        self._count += len(lines)
        for row, text in lines:
            if row == self._next:
                self._print(text)
        self._later.put(each for each in lines if each[0] >= self._next)
        while (following := self._later.get(self._next)) is not None:
            self._print(following)
        if self._next == self._count and self._later.size:  # nothing waits
            self._later = Lines()

    def _print(self, line: bytes) -> None:
        sys.stdout.buffer.write(line)
        self._next += 1

    def finish(self) -> None:
        """Flush the output."""
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Do nothing, as there is no folder."""

    def records(self) -> Iterator[Record]:
        """Yield nothing, as no record is kept."""
        return iter(())


def _line(record: Record) -> bytes:
    return to_json(record) + b"\n"
