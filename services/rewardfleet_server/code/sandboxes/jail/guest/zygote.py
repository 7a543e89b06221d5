"""The zygote: the process that all runs are forked from.

It never receives the data of a submission, only descriptors of files, which the run reads itself.
So a run finds nothing of earlier submissions in its memory, and all runs start in the same state.
Its children are those of the supervisor, which waits for them.
"""

import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import NoReturn

from .confinement import MAX_DESCRIPTORS, Confinement, end_with, libc
from .descriptors import ORDER, Order
from .program import run_program
from .tester import run_tests

#: The system call `clone` by machine. It makes the parent of this process that of the new one.
_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
_CLONE_PARENT = 0x8000
#: Room for more descriptors than any message has.
_MAX_ANCILLARY_BYTES = socket.CMSG_SPACE(64 * 4)

#: What follows the order of a run in the message to the supervisor: when its processes were
#: started (`time.monotonic`), and their ids: negative if that failed, 0 if there is no second one.
STARTED = struct.Struct("=dii")

Role = Callable[[Confinement, Order, tuple[int, ...]], NoReturn]


def serve(orders: socket.socket, runs: int, confinement: Confinement) -> NoReturn:
    """Fork the processes of each run, and report them to the supervisor.

    Args:
        orders: Each message is an order, and descriptors for the processes.
        runs: Where the runs are written, for the supervisor.
    """
    end_with(confinement.supervisor)
    while True:
        message, ancillary, _, _ = orders.recvmsg(ORDER.size, _MAX_ANCILLARY_BYTES)
        if not message:
            os._exit(0)  # the service has ended
        started = time.monotonic()
        files = ancillary[0][2]
        order = Order._make(ORDER.unpack(message))
        program = start(run_program, confinement, order, files)
        tests = start(run_tests, confinement, order, files) if order.tests_apart else 0
        os.write(runs, message + STARTED.pack(started, program, tests))
        os.closerange(3, MAX_DESCRIPTORS)


def start(role: Role, confinement: Confinement, order: Order, files: bytes) -> int:
    """Start a process of a run; return its id, negative if that failed."""
    pid: int = libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if not pid:
        try:
            role(confinement, order, struct.unpack(f"{len(files) // 4}i", files))
        finally:
            os._exit(1)
    return pid
