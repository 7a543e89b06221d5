"""The zygote: the process that all runs are forked from.

It never receives the data of a submission, only descriptors of files, which the run reads itself.
So a run finds nothing of earlier submissions in its memory, and all runs start in the same state.
Its children are those of the supervisor, which waits for them.
"""

import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from .confinement import MAX_DESCRIPTORS, Confine, Confinement, end_with, fast_libc
from .descriptors import ORDER, TESTS_APART
from .program import Program
from .tester import run_tests

#: The system call `clone` by machine, which makes the parent of this process that of the new one.
_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
_FLAGS = 0x8000 | int(signal.SIGCHLD)
#: Room for more descriptors than any message has.
_MAX_ANCILLARY_BYTES = socket.CMSG_SPACE(64 * 4)
#: KiB that the zygote may have once it has imported modules.
_MOST_KIB = 160 * 2**10

#: What follows the order of a run in the message to the supervisor: when its processes were
#: started (`time.monotonic`), and their ids: negative if that failed, 0 if there is no second one.
STARTED = struct.Struct("=dii")

Role = Callable[[Confine, bytes, Sequence[int]], NoReturn]


def serve(orders: socket.socket, runs: int, confinement: Confinement, program: Program) -> NoReturn:
    """Fork the processes of each order, and write what was started to `runs`."""
    end_with(confinement.supervisor)
    confine, role = confinement.apply, program.run
    while True:
        serve_run(orders, runs, confine, role)


def preload(modules: list[str]) -> None:
    """Import modules for all runs; end the jail if one fails, prints, is large, or has threads."""
    if not modules:
        return
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))  # no run would have the threads
    for name in modules:
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_NPROC, limits)
    sys.stdout.flush()
    if os.fstat(1).st_size or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _MOST_KIB:
        os._exit(1)
    gc.freeze()


def serve_run(orders: socket.socket, runs: int, confine: Confine, program: Role) -> None:
    """Wait for an order, and start its processes.

    This is a function of its own so that they find nothing of the last run in its variables.
    """
    message, ancillary, _, _ = orders.recvmsg(ORDER.size, _MAX_ANCILLARY_BYTES)
    if not message:
        os._exit(0)  # the service has ended
    started = time.monotonic()
    # No others are open below these, so the kernel gives them the first numbers.
    descriptors = range(3, 3 + len(ancillary[0][2]) // 4)
    pid = start(program, confine, message, descriptors)
    tests = start(run_tests, confine, message, descriptors) if message[TESTS_APART] else 0
    os.write(runs, message + STARTED.pack(started, pid, tests))
    os.closerange(3, MAX_DESCRIPTORS)


def start(role: Role, confine: Confine, message: bytes, descriptors: Sequence[int]) -> int:
    """Start a process of a run; return its id, negative if that failed."""
    pid: int = fast_libc.syscall(_CLONE, _FLAGS, 0, 0, 0, 0)
    if not pid:
        try:
            role(confine, message, descriptors)
        finally:
            os._exit(1)
    return pid
