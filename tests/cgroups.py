"""Cgroups with a limit, for a process that a test starts: what a container is to it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rewardfleet_server.testing import wait_until

#: Where version 2 is mounted, and the controllers of version 1.
_TOP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    folder: Path

    @property
    def command(self) -> tuple[str, ...]:
        """Starts the command that follows it in the cgroup."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def kills(self) -> int:
        """Return how many processes the kernel has killed in it for lack of memory."""
        files = (self.folder / name for name in ("memory.events", "memory.oom_control"))
        lines = next(file for file in files if file.exists()).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def memory_group(limit_bytes: int) -> AbstractContextManager[Cgroup]:
    """Make a cgroup with a limit on memory. Where that is not permitted, the test is skipped."""
    limit = str(limit_bytes)
    return _group({"memory.max": limit}, "memory", {"memory.limit_in_bytes": limit})


def cpu_group(cores: float) -> AbstractContextManager[Cgroup]:
    """Make a cgroup with a CPU quota. Where that is not permitted, the test is skipped."""
    quota, period = str(int(cores * 100_000)), "100000"
    old = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
    return _group({"cpu.max": f"{quota} {period}"}, "cpu", old)


@contextmanager
def _group(limits: Mapping[str, str], controller: str, old: Mapping[str, str]) -> Iterator[Cgroup]:
    """Make a cgroup.

    Args:
        limits: The files of its limits, and what they contain.
        controller: The controller of version 1 that has these limits.
        old: What `limits` is in version 1.
    """
    for top, files in ((_TOP, limits), (_TOP / controller, old)):
        folder = top / f"rewardfleet-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if not all((folder / name).exists() for name in files):
            folder.rmdir()
            continue
        for name, content in files.items():
            (folder / name).write_text(content)
        try:
            yield Cgroup(folder)
        finally:
            _remove(folder)
        return
    pytest.skip("no cgroup with such a limit can be made here: it needs root, and /sys/fs/cgroup")


def _remove(folder: Path) -> None:
    """Wait for the end of the processes of a cgroup, and remove it."""
    wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()
