"""Files in memory, by their descriptors, and what the processes of a run are to do."""

import fcntl
import json
import os
import signal
import struct
import sys
from typing import Any, NamedTuple

#: The seals of a file in memory that cannot be changed any more.
ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
#: The exit status of a jail whose zygote was ended by SIGKILL, and of bubblewrap if its jail was.
KILLED = 128 + signal.SIGKILL
#: Requests of `ioctl` to a listener of seccomp: receive a call, answer it, or give it a file.
LISTENER_REQUESTS = RECEIVE, ANSWER, GIVE = 0xC0502100, 0xC0182101, 0x40182103
#: The memory limit of the process of the tests, as a multiple of the program's: the values that
#: cross are in the memory of both, and there also as JSON.
TESTS_MEMORY = 2
#: Seconds of CPU time after which a run is long: several times what a short program uses, and
#: little for a caller whose program waits for it.
LONG_S = 0.025


def contents(file: int, most: int = 2**31 - 2**12) -> bytes:
    """Return the first bytes of a file in memory: at most what one call of the kernel reads."""
    return os.pread(file, min(os.lseek(file, 0, os.SEEK_END), most), 0)


def write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def open_streams() -> None:
    """Open the standard streams once for all runs, each of which puts its own files below them."""
    for number in range(3):
        os.dup2(os.memfd_create("none"), number)
    options: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = open(0, errors="surrogateescape", **options)
    sys.stdout = open(1, "w", errors="surrogateescape", newline="\n", **options)
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, **options)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


class Order(NamedTuple):
    """The message that starts a run. It has none of the submission's data.

    What is in it is cheap to read: every run does so in a new process, in which each page of memory
    that it touches is copied.
    """

    number: int
    tests_apart: bool  #: whether another process evaluates the checks
    has_script: bool  #: whether there is a file with a `Script` for the program's process
    prints_last: bool  #: whether the program may print when its objects are destroyed
    cpu_s: float
    wall_s: float
    memory_bytes: int  #: memory in addition to the interpreter's own
    output_bytes: int  #: size of any file that is written
    report_bytes: int


#: An order as bytes.
ORDER = struct.Struct("=Q???ddQQQ")
#: The index of `tests_apart` in these.
TESTS_APART = 8


class Script(NamedTuple):
    """Code of the tests that a process of a run executes."""

    setup: str = ""  #: source code that runs first
    checks: Any = ()  #: evaluated after the program, each with the fields of a `Check`


def read_script(file: int) -> Script:
    return Script(*json.loads(contents(file)))
