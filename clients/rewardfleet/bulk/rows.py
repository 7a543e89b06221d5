"""Rows of an input: a clip, a folder of clips, a table, or a data set, read one after another."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TextIO

from pydantic_core import from_json

from .arrow import pyarrow, with_json
from .lerobot import episodes_of, is_lerobot

#: Bytes of one line of a table; a longer one is an error of its row.
_MAX_LINE = 64 * 2**20
#: Rows of a column store that are read at a time.
_ROWS_AT_A_TIME = 256
_CLIPS = {".mp4", ".mkv", ".webm", ".avi", ".mov"}
_TABLES = ".jsonl, .csv, .parquet or .arrow"
_TEXTS = {".jsonl", ".ndjson", ".csv"}
#: The name of a part of a split.
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.\w+")
#: A byte of a CSV that is not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")
#: How files begin that are no text in UTF-8.
_MARKS = {
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class Row(NamedTuple):
    """A row of an input."""

    place: str  #: where it is, e.g. `rows.jsonl:12`
    fields: Mapping[str, Any] = MappingProxyType({})  #: its columns
    folder: Path = Path()  #: what paths in it are relative to
    error: str = ""  #: why it cannot be read
    #: Columns whose objects have the keys of all rows, with null for those that a row has not.
    unified: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Source:
    """A file, or a data set, whose rows are read one after another."""

    path: Path
    _read: Callable[[Path], Iterator[Row]]
    _count: Callable[[Path], int] | None = None  #: a faster way than reading the rows

    def rows(self) -> Iterator[Row]:
        """Yield the rows; a file that is damaged ends with a row that says so."""
        number = 0
        try:
            for row in self._read(self.path):
                yield row
                number += 1
        except (OSError, ValueError, KeyError) as error:  # a map has a key twice
            yield Row(str(self.path), error=f"cannot be read after {number:,} rows: {error}")

    def count(self) -> int:
        """Return the number of rows, without parsing them where that is possible.

        Raises:
            ValueError: It is damaged.
        """
        try:
            return self._count(self.path) if self._count else sum(1 for _ in self._read(self.path))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    @property
    def is_lerobot(self) -> bool:
        """Whether it is a LeRobot data set."""
        return self._read is _lerobot

    @property
    def is_clip(self) -> bool:
        """Whether it is one video file."""
        return self._read is _clip

    def stamp(self) -> tuple[str, int, int]:
        """Return the path, the size and the time of change, by which a change is noticed."""
        try:
            stat = self.path.stat()
        except OSError:  # a link to nothing, which is an error of its row
            stat = self.path.lstat()
        return os.path.realpath(self.path), stat.st_size, stat.st_mtime_ns


def open_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the sources of an input, in order.

    Raises:
        ValueError: A file is of no known type, or a folder has nothing that can be scored.
        FileNotFoundError: A path does not exist.
    """
    return [source for path in paths for source in _sources_at(path)]


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table, or of a folder of tables.

    Raises:
        ValueError: It is no table, or a row cannot be read.
        OSError: It cannot be read.
    """
    for source in open_sources([path]):
        for row in source.rows():
            if row.error:
                raise ValueError(f"{row.place}: {row.error}")
            yield row


def clip_of(record: Mapping[str, Any], sha256: str | None) -> bytes | None:
    """Return the clip of a record of an output; None if it is gone or has changed.

    Args:
        record: Its `path` names the file, or its `place` the row of a column store that has the
            bytes.
        sha256: The digest of the clip that was scored.
    """
    found: list[Any] = []
    with suppress(OSError, ValueError):
        if (named := record["path"]) is not None:
            found = [Path(named).read_bytes()] if Path(named).is_file() else []
        else:
            path, _, number = (record.get("place") or "").rpartition(": row ")
            for row in islice(read_rows(Path(path)), int(number), int(number) + 1):
                cells = row.fields.values()
                found = [e.get("bytes") if isinstance(e, Mapping) else e for e in cells]
    clips = (each for each in found if isinstance(each, bytes))
    return next((each for each in clips if hashlib.sha256(each).hexdigest() == sha256), None)


def _sources_at(path: Path) -> Iterable[Source]:
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    if not path.is_dir():
        return [_file(path)]
    if is_lerobot(path):
        return [Source(path / "meta" / "info.json", _lerobot, lambda _: len(episodes_of(path)))]
    return _folder(path)


def _folder(path: Path) -> list[Source]:
    """Return the files of a folder: those of a data set that `datasets` has saved, or all known."""
    # Links to nothing as well: they are clips that are missing.
    files = [each for each in sorted(path.rglob("*")) if each.is_file() or not each.exists()]
    tables = [each for each in files if each.suffix in _READERS]
    splits = {str(each.parent) for each in path.glob("*/state.json")}
    if not (path / "dataset_dict.json").exists():  # else as on the hub
        splits = {f"{shard[1]}-*" for each in tables if (shard := _SHARD.fullmatch(str(each)))}
    if len(splits) > 1:
        names = ", ".join(sorted(splits))
        raise ValueError(f"{path}: the folder has several splits; give one or more of {names}")
    saved = [each for each in tables if each.suffix in {".arrow", ".parquet"}]
    clips = [each for each in files if each.suffix.lower() in _CLIPS]
    if (path / "state.json").exists() or (path / "dataset_info.json").exists():
        clips, tables = [], saved
    if bool(clips) == bool(tables):
        both = "clips and tables: name one of them" if clips else "neither clips nor tables"
        raise ValueError(f"{path}: the folder has {both}")
    return [_file(each) for each in clips or tables]


def _file(path: Path) -> Source:
    if path.suffix.lower() in _CLIPS:
        return Source(path, _clip)
    if path.suffix not in _READERS:
        clips = ", ".join(sorted(_CLIPS))
        raise ValueError(f"{path}: give a table ({_TABLES}), a clip ({clips}), or a folder")
    if not path.is_file():
        raise ValueError(f"{path}: give a file, as it is read twice")
    if path.suffix in _TEXTS:
        with path.open("rb") as file:
            start = file.read(4)
        if found := [what for mark, what in _MARKS.items() if start.startswith(mark)]:
            raise ValueError(f"{path} is {found[0]}: give it as UTF-8, uncompressed")
    return Source(path, *_READERS[path.suffix])


def _clip(path: Path) -> Iterator[Row]:
    yield Row(str(path), {"clip": path.name}, path.parent)


def _lerobot(info: Path) -> Iterator[Row]:
    root = info.parent.parent
    for episode in episodes_of(root):
        yield Row(f"{root}: episode {episode['episode_index']}", episode, root)


def _json_lines(path: Path) -> Iterator[Row]:
    folder = path.parent
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            place = f"{path}:{number}"
            if len(line) == _MAX_LINE:
                yield Row(place, error=f"a line of more than {_MAX_LINE} bytes")
                continue
            if not line.strip():
                continue
            try:
                fields = _parsed(line)
            except (ValueError, RecursionError) as error:
                yield Row(place, error=f"not JSON: {error}")
                continue
            if not isinstance(fields, dict):
                yield Row(place, error=f"a row is a JSON object, not {line.strip()[:60]!r}")
            else:
                yield Row(place, fields, folder)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; of a longer one, the first `_MAX_LINE` bytes."""
    while line := file.readline(_MAX_LINE):
        rest = line
        while len(rest) == _MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(_MAX_LINE)
        yield line


def _parsed(line: bytes) -> Any:
    """Return the value of a line of JSON; ValueError if it is none, RecursionError if too deep."""
    try:
        return from_json(line)
    except ValueError:  # it may have what only the slower parser takes, e.g. lone surrogates
        return json.loads(line.decode("utf-8-sig"))


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(_MAX_LINE)
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.DictReader(_short_lines(file), restkey="", restval=None, strict=True)
        try:
            for fields in reader:
                place = f"{path}:{reader.line_num}"
                if "" in fields or None in fields.values():
                    columns = f"{len(reader.fieldnames or ())} columns, this row another number"
                    yield Row(place, error=f"the header has {columns}")
                elif any(map(_ESCAPED.search, (*fields, *fields.values()))):
                    yield Row(place, error="not UTF-8")
                else:  # an empty cell is null: the format has no other
                    cells = {name: cell or None for name, cell in fields.items()}
                    yield Row(place, cells, path.parent)
        except csv.Error as error:  # what follows cannot be aligned
            yield Row(f"{path}:{reader.line_num}", error=f"not CSV: {error}")


def _short_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise csv.Error(f"a line of more than {_MAX_LINE} characters")
        yield line


def _parquet(path: Path) -> Iterator[Row]:
    with pyarrow().parquet.ParquetFile(path) as file:
        batches = file.iter_batches(batch_size=_ROWS_AT_A_TIME)
        yield from table_rows(path, file.schema_arrow, batches)


def _arrow(path: Path) -> Iterator[Row]:
    """Read a file of `datasets`, which is a stream of Arrow batches."""
    pa = pyarrow()
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from table_rows(path, stream.schema, stream)


def table_rows(path: Path, schema: Any, batches: Iterable[Any]) -> Iterator[Row]:
    """Yield the rows of batches of Arrow, with what JSON in them stands for."""
    types = pyarrow().types
    with_texts = {each.name: each.type for each in schema if "arrow.json" in str(each.type)}
    unified = frozenset(each.name for each in schema if types.is_nested(each.type))
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
            part = batch.slice(start, _ROWS_AT_A_TIME)
            for fields in part.to_pylist(maps_as_pydicts="strict"):
                for name, kind in with_texts.items():
                    fields[name] = with_json(fields[name], kind)
                yield Row(f"{path}: row {number}", fields, path.parent, unified=unified)
                number += 1


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in _lines(file) if line.strip())


_READERS: dict[str, tuple[Callable[[Path], Iterator[Row]], Callable[[Path], int] | None]] = {
    ".jsonl": (_json_lines, _count_lines),
    ".ndjson": (_json_lines, _count_lines),
    ".csv": (_csv, None),
    ".parquet": (_parquet, lambda path: int(pyarrow().parquet.read_metadata(path).num_rows)),
    ".arrow": (_arrow, None),
}
