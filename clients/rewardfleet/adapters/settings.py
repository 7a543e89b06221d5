"""What adapters read from the environment: which start of its run a trainer is."""

import os
import sys
import uuid
from pathlib import Path
from typing import Any


def attempt() -> str:
    """Return the name of this start of the trainer, the same in all of its processes on a node.

    The first process that calls this leaves it to its children in `REWARDFLEET_ATTEMPT`. Whoever
    starts a trainer on several nodes sets that variable to a text that is new with each start.
    """
    name = _of_ray() or _of_launcher() or uuid.uuid4().hex
    return os.environ.setdefault("REWARDFLEET_ATTEMPT", name)


def _of_ray() -> str | None:
    """Return the name of a job of Ray, whose workers inherit nothing from the trainer."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()  # the id of a job repeats in other clusters
    return f"{context.get_node_id()} {context.get_job_id()}"


def _of_launcher() -> str | None:
    """Return the name of the process that has started all ranks of the trainer, e.g. torchrun."""
    if "LOCAL_RANK" not in os.environ:
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The time of its start is the 22nd field; the second, a name, may contain spaces.
        started = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # no Linux
        return None
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{boot} {os.getppid()} {started} {restarts}"
