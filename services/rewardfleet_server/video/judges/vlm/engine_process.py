"""The first code in every process that vLLM starts (entry point `vllm.general_plugins`).

vLLM ends its processes at its shutdown, but not if the process that started them is killed; they
would then occupy the GPU.
"""

import ctypes
import multiprocessing
import os
import signal

from vllm.platforms import current_platform

from rewardfleet_server.threads import lower_thread_priority
from rewardfleet_server.video.settings import started_by_service

_PR_SET_PDEATHSIG = 1


def begin() -> None:
    """Have the kernel kill this process when its parent ends, if it belongs to a service."""
    parent = multiprocessing.parent_process()
    if parent is None or not started_by_service():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the call
        os._exit(1)
    if current_platform.is_cpu():
        lower_thread_priority()
