"""The first code in every process that vLLM starts (entry point `vllm.general_plugins`).

vLLM ends its processes at its shutdown, but not if the process that started them is killed; they
would then occupy the GPU.
"""

import multiprocessing
import signal

from vllm.platforms import current_platform

from rewardfleet_server.system.child_process import end_with_parent
from rewardfleet_server.system.threads import lower_thread_priority
from rewardfleet_server.video.settings import started_by_service


def begin() -> None:
    """Have the kernel kill this process when its parent ends, if it belongs to a service."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or not started_by_service():
        return
    end_with_parent(parent.pid, signal.SIGKILL)
    if current_platform.is_cpu():
        lower_thread_priority()
