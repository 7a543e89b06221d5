"""A cgroup with a memory limit, for a process that a test starts: what a container is to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rewardfleet_server.testing import wait_until

#: Where version 2 is mounted, and version 1, with the files of the limit and of what was killed.
_VERSIONS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
)


class MemoryGroup:
    """A cgroup.

    Attributes:
        command: Starts the command that follows it in the cgroup.
    """

    def __init__(self, folder: Path, events: str) -> None:
        self._folder = folder
        self._events = events
        join = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
        self.command = ("sh", "-c", join, "sh")

    def kills(self) -> int:
        """Return how many processes the kernel has killed in it for lack of memory."""
        lines = (self._folder / self._events).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self) -> None:
        """Wait for the end of its processes, and remove it."""
        wait_until(lambda: not (self._folder / "cgroup.procs").read_text())
        self._folder.rmdir()


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a cgroup. Where that is not permitted, the test is skipped."""
    for top, limit, events in _VERSIONS:
        folder = top / f"rewardfleet-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if not (folder / limit).exists():
            folder.rmdir()
            continue
        (folder / limit).write_text(str(limit_bytes))
        group = MemoryGroup(folder, events)
        try:
            yield group
        finally:
            group.remove()
        return
    pytest.skip("no cgroup with a memory limit can be made here: it needs root, and /sys/fs/cgroup")
