"""Files in memory, by their descriptors: reading, writing, and the order of a run."""

import fcntl
import json
import os
import struct
from typing import Any, NamedTuple

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


def write_all(file: int, content: bytes | bytearray | memoryview) -> None:
    """Write all bytes to a file."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


class Order(NamedTuple):
    """What a process of a run is to do.

    Attributes:
        cpu_s: Seconds of CPU time.
        memory_bytes: Memory in addition to the interpreter's own.
        output_bytes: Size of any file that is written.
        report_bytes: Size of the report.
        setup: Source code that runs first.
        checks: Evaluated after the program, by this process.
        tests_apart: Whether another process evaluates the checks.
    """

    cpu_s: float
    memory_bytes: int
    output_bytes: int
    report_bytes: int
    setup: str = ""
    checks: Any = ()
    tests_apart: bool = False


#: The numbers of an order, and the size of its setup. What follows is cheap to read: every run
#: does so in a new process, in which each page of memory that it touches is copied.
_ORDER = struct.Struct("=dQQQ?I")


def encode_order(order: Order) -> bytes:
    """Return an order as bytes."""
    setup = order.setup.encode(errors="surrogatepass")
    numbers = _ORDER.pack(*order[:4], order.tests_apart, len(setup))
    return b"".join((numbers, setup, json.dumps(order.checks).encode() if order.checks else b""))


def read_order(file: int) -> Order:
    """Return the order in a file."""
    content = read_all(file)
    cpu_s, memory, output, report, tests_apart, size = _ORDER.unpack_from(content)
    checks = content[_ORDER.size + size :]
    setup = content[_ORDER.size : _ORDER.size + size].decode(errors="surrogatepass")
    parsed = json.loads(checks) if checks else ()
    return Order(cpu_s, memory, output, report, setup, parsed, tests_apart)
