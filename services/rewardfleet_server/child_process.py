"""A process that must not outlive the one that started it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Let the kernel send a signal to this process when its parent ends, however that happens.

    Args:
        parent: The process id of the parent.
        number: The signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
