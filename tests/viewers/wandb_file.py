"""Reads the file of an offline run of W&B."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records_of(path: Path) -> Iterator[Any]:
    """Yield the records of a run: protobuf messages, in a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (rest := 32768 - at % 32768) < 7:  # of a block
            at += rest
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # a whole record, or the end of one
            yield Record.FromString(part)
            part = b""


def history_of(path: Path) -> list[dict[str, Any]]:
    """Return what was logged at each step of W&B."""
    rows: list[dict[str, Any]] = []
    for record in records_of(path):
        if record.HasField("history"):
            rows.append({})
            for item in record.history.item:
                *outer, key = item.nested_key or [item.key]
                row = rows[-1].setdefault(outer[0], {}) if outer else rows[-1]
                row[key] = json.loads(item.value_json)
    return rows


def rows_of(path: Path, logged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table that was logged."""
    table = json.loads((path.parent / "files" / logged["path"]).read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
