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
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from pydantic_core import from_json, to_json

from rewardfleet.score_log.record import (
    ITEM_COLUMNS,
    MAX_RECORD_BYTES,
    Record,
    Scored,
    decoded,
    record_of,
)
from rewardfleet.wire.digest import digest_of
from rewardfleet.wire.score import Request

from .arrow import arrow_table, json_text, pyarrow
from .files import new_file, temporary_name

if TYPE_CHECKING:  # who reads outputs has no use of a client
    from .requests import RequestBuilder
    from .run import ScoredItem

Format = Literal["parquet", "jsonl"]

_JOURNAL, _INPUT, _LOCK = "journal.jsonl", "input.json", ".lock"
#: A part ends when it has so many rows, or so many bytes of JSON.
_PART_ROWS, _PART_BYTES = 10_000, 64 * 2**20
#: Rows that are objects in memory at a time: of more, the conversion takes a third longer.
_SLICE = 500


def records_of(scored: "Iterable[ScoredItem]", builder: "RequestBuilder") -> list[Record]:
    """Return the records of items, whose requests `builder` has built."""
    now = time.time()
    return [_record_of(each, builder, now) for each in scored]


def _record_of(scored: "ScoredItem", builder: "RequestBuilder", now: float) -> Record:
    item, request, score = scored
    own = builder.service, now, request or Request(), score
    record = record_of(Scored(*own, options=builder.options))
    if request is None:
        record["id"] = digest_of(json.dumps([item.row.place, item.completion]))
    if request is None or len(record["request"]) > MAX_RECORD_BYTES:  # more than readers take
        record["request"] = None
    path = builder.clip_path(item.row)
    return {
        "row": item.index,
        "place": _encodable(item.place),
        "completion": item.completion,
        "path": None if path is None else _encodable(str(path.resolve())),
        "metadata": json_text(builder.metadata_of(item.row)),
        "keep": getattr(score, "keep", None),  # of an episode
        **record,
        "uid": record["uid"] if item.uid is None else _encodable(item.uid),
    }


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, as names of files may have."""
    return text.encode(errors="replace").decode()


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the records of an output, whose `details` are fields of their own."""
    for record in itertools.chain.from_iterable(map(_read, sorted(folder.glob("part-*")))):
        yield {**record, "details": {}, **from_json(record["details"])}


class Lines:
    """Lines of JSON with a `row`, in a file: eight bytes of memory for each row up to the last one.

    Args:
        path: The file; its last line may be incomplete, if a command was killed. None: an unnamed
            one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.file = path.open("a+b") if path else tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self.size = 0  #: bytes of the file
        self._places = array("q")  # -1: no such line
        self.file.seek(0)
        for line in self.file:
            if line.endswith(b"\n"):
                self._note(from_json(line)["row"], line)
        self.file.truncate(self.size)  # a full disk allows that

    def put(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Write lines of rows, in place of those that are there."""
        self.file.seek(self.size)
        for row, line in lines:
            self.file.write(line)
            self._note(row, line)

    def _note(self, row: int, line: bytes) -> None:
        self._places.extend([-1] * (row + 1 - len(self._places)))
        self._places[row] = self.size
        self.size += len(line)

    def __contains__(self, row: int) -> bool:
        return row < len(self._places) and self._places[row] >= 0

    def get(self, row: int) -> bytes:
        """Return a line; empty if there is none."""
        if row not in self:
            return b""
        self.file.seek(self._places[row])
        return self.file.readline()

    def rows(self) -> Iterator[int]:
        """Yield the rows that have a line, in order."""
        return (row for row, place in enumerate(self._places) if place >= 0)

    def __del__(self) -> None:
        self.file.close()


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
        self._journal = Lines(self._journal_path)

    def close(self) -> None:
        """Let other commands write to the folder."""
        with self._naming_the_folder(), self._lock:
            self._journal.file.close()  # which writes what a full disk has not taken

    def records(self) -> Iterator[Record]:
        """Yield the records that there are, those of parts first."""
        yield from self._records_of_parts()
        for row in self._journal.rows():
            yield from_json(self._journal.get(row))

    def add(self, records: Iterable[Record]) -> None:
        """Keep records, also of rows that are there already.

        Raises:
            OSError: They cannot be written.
        """
        with self._naming_the_folder():
            self._journal.put((each["row"], to_json(each) + b"\n") for each in records)
            self._journal.file.flush()

    def finish(self) -> None:
        """Make parts of the journal, once all rows are scored.

        Raises:
            OSError: They cannot be written; the journal stays.
        """
        with self._naming_the_folder():
            if self._journal.size:
                self.add(self._records_of_parts())
                os.fsync(self._journal.file.fileno())  # parts are replaced one by one
                before = self._parts()
                count = 0
                for count, lines in enumerate(self._lines_of_parts(), 1):
                    self._write(self.folder / f"part-{count - 1:05}.{self._kind}", lines)
                for path in before[count:]:
                    path.unlink()
            self._journal_path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(f"part-*.{self._kind}"))

    def _records_of_parts(self) -> Iterator[Record]:
        """Yield the records of parts that the journal has no newer ones of."""
        records = itertools.chain.from_iterable(map(_read, self._parts()))
        return (each for each in records if each["row"] not in self._journal)

    def _lines_of_parts(self) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        size = 0
        for row in self._journal.rows():
            lines.append(self._journal.get(row))
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


def _opened(folder: Path, key: Mapping[str, Any]) -> IO[str]:
    """Lock a folder for an input until the result is closed; see `Output` for errors."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _INPUT
    _outdated(path, key)
    with ExitStack() as stack:
        lock = stack.enter_context((folder / _LOCK).open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another command is writing there") from None
        for old in _outdated(path, key):  # again: another command may have been here first
            old.unlink()
        with new_file(path) as file:
            file.write(json.dumps(key, indent=1).encode())
        stack.pop_all()
    return lock


def _outdated(path: Path, key: Mapping[str, Any]) -> list[Path]:
    """Check that a folder belongs to an input, which its `input.json` says, or has no scores.

    Return its files of another input, all of which failed.
    """
    folder = path.parent
    if not path.exists():
        own = {_LOCK, temporary_name(path)}
        if any(each.name not in own for each in folder.iterdir()):
            raise ValueError(f"{folder} has other files: give a new or an empty folder")
        return []
    try:
        known = json.loads(path.read_text())
        other = [name for name in key if known.get(name) != json.loads(json.dumps(key[name]))]
    except (ValueError, AttributeError):
        raise ValueError(f"{path} is not of this command: give another -o") from None
    found = [*folder.glob("part-*"), *folder.glob(_JOURNAL)] if other else []
    if any(record["status"] != "error" for each in found for record in _read(each)):
        raise ValueError(
            f"{folder} has the scores of another input or other options "
            f"({', '.join(other)} differ, see {path}): give another -o"
        )
    return found


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
        self._lines = Lines()

    def add(self, records: Iterable[Record]) -> None:
        """Print records, and what waited for them."""
        # ASCII: a terminal must not obey characters that a policy wrote.
        lines = [(each["row"], json.dumps(decoded(each)).encode() + b"\n") for each in records]
        self._count += len(lines)
        self._lines.put(lines)
        while line := self._lines.get(self._next):
            sys.stdout.buffer.write(line)
            self._next += 1
        if self._next == self._count:  # nothing waits
            self._lines.size = 0  # so what follows is written over it

    def finish(self) -> None:
        """Flush the output."""
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Do nothing, as there is no folder."""

    def records(self) -> Iterator[Record]:
        """Yield nothing, as no record is kept."""
        return iter(())
