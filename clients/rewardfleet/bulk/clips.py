"""Clips of an output: a file, or the bytes in a row of a table, if they have not changed."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from .rows import read_rows

#: The place of a row of a column store.
_PLACE = re.compile(r"(.+): row (\d+)")


def clip_of(record: Mapping[str, Any], sha256: str | None) -> bytes | None:
    """Return the clip of a record of an output; None if it is gone or has changed.

    Args:
        record: Its `path` names the file, or its `place` the row that has the bytes.
        sha256: The digest of the clip that was scored.
    """
    if record["path"] is not None:
        path = Path(record["path"])
        found = [path.read_bytes()] if path.is_file() else []
    else:
        found = _bytes_at(record.get("place") or "")
    return next((each for each in found if hashlib.sha256(each).hexdigest() == sha256), None)


def _bytes_at(place: str) -> list[bytes]:
    """Return all bytes in a row of a column store; none if it is not there."""
    named = _PLACE.fullmatch(place)
    if named is None:
        return []
    with suppress(OSError, ValueError):
        for row in islice(read_rows(Path(named[1])), int(named[2]), None):
            values = (v.get("bytes") if isinstance(v, Mapping) else v for v in row.fields.values())
            return [each for each in values if isinstance(each, bytes)]
    return []
