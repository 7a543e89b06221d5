"""Work that leaves the event loop."""

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from .cgroups import cpu_quotas

T = TypeVar("T")

#: Niceness of threads that compute; the event loop's is mostly 0.
_NICE = 10


def usable_cores() -> int:
    """Return how many cores this process may use: of its CPU set, and within its CPU quotas."""
    return max(1, int(min([len(os.sched_getaffinity(0)), *cpu_quotas()])))


def run_in_thread(executor: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in an executor, with this task's context: log lines keep their request id."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(executor, context.run, work)


def lower_thread_priority() -> None:
    """Lower this thread's priority, so that heavy work does not delay the event loop."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # of the service; only root may lower it
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _NICE))
