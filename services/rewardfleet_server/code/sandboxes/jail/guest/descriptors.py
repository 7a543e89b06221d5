"""Reading and writing files by their descriptors."""

import fcntl
import json
import os
from typing import Any

#: The seals of a file in memory that cannot be changed any more.
ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def contents(file: int, most: int) -> bytes:
    """Return the first bytes of a file."""
    size = min(os.fstat(file).st_size, most)
    parts, start = [], 0
    while start < size:
        part = os.pread(file, size - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def read_all(file: int) -> bytes:
    """Return a complete file."""
    return contents(file, os.fstat(file).st_size)


def read_json(file: int) -> Any:
    """Return the JSON in a file, and close it."""
    content = json.loads(read_all(file))
    os.close(file)
    return content


def write_all(file: int, content: bytes | bytearray | memoryview) -> None:
    """Write all bytes to a file."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
