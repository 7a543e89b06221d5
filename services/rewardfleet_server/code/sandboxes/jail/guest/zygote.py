"""The zygote: the process that all runs are forked from.

It never receives the data of a submission, only descriptors of files, which the run reads itself.
So a run finds nothing of earlier submissions in its memory, and all runs start in the same state.
Its children are those of the supervisor, which waits for them.
"""

import os
import platform
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from .confinement import Confinement, end_with, libc
from .program import run_program
from .tester import run_tests

#: The system call `clone` by machine. It makes the parent of this process that of the new one.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
#: More descriptors than any message has.
_MAX_DESCRIPTORS = 64

#: The processes of a run, by the message that starts it.
ROLES: dict[bytes, tuple[Callable[[Confinement, list[int]], NoReturn], ...]] = {
    b"p": (run_program,),
    b"t": (run_program, run_tests),
}


def serve(orders: socket.socket, pids: int, confinement: Confinement) -> NoReturn:
    """Fork the processes of each run, and write their ids (negative if that failed).

    Args:
        orders: Each message is a key of `ROLES`, and descriptors for the processes.
        pids: Where the ids are written: 4 bytes each.
        confinement: Of the processes.
    """
    end_with(confinement.supervisor)
    clone = _CLONE[platform.machine()]
    while True:
        message, files, _, _ = socket.recv_fds(orders, 1, _MAX_DESCRIPTORS)
        if not message:
            os._exit(0)  # the service has ended
        for role in ROLES[message]:
            pid = libc.syscall(clone, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
            if not pid:
                try:
                    role(confinement, files)
                finally:
                    os._exit(1)
            os.write(pids, pid.to_bytes(4, "little", signed=True))
        for file in files:
            os.close(file)
