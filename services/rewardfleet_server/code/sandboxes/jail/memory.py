"""The memory that programs may take together, and the jobs that wait for it.

A job has memory from its beginning to its end: the most that its processes can take. So together
they never take more than there is, whatever they do, and the kernel need not end any of them.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rewardfleet_server.code.sandboxes import MAX_REPORT_BYTES, RunLimits
from rewardfleet_server.system.cgroups import cgroups

from .guest.descriptors import TESTS_MEMORY

_MIB = 2**20
#: Bytes that are left to the service: its code, cached scores, and the bodies of requests.
_SERVICE_BYTES = 512 * _MIB
#: The share of a machine's memory that is used: the rest is left to other processes.
_MACHINE_SHARE = 0.9
#: Bytes of a process of a run that its limit does not count, about: a share of its jail, pages that
#: it copies of the interpreter, page tables, and what is in pipes and sockets.
_PROCESS_BYTES = 64 * _MIB
#: Files in memory that such a process may write: the standard streams and the report.
_FILES = 4

#: MiB of the default of `max_memory_mb`: at most, and at least. It is a multiple of the last one,
#: so that it is the same whenever a machine starts.
MOST_MB, _LEAST_MB, _STEP_MB = 4096, 128, 64

#: The files with the limits of a cgroup, of both versions.
_LIMIT_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")


@dataclass(frozen=True)
class Capacity:
    """The memory that the service and its programs may take."""

    total: int  #: bytes
    owner: str  #: what has them: the container or the machine

    @classmethod
    def here(cls, root: Path = Path("/")) -> "Capacity":
        """Return what this process may take: the least of the limits that apply to it."""
        limits = [cls(_machine_bytes(root), "this machine")]
        limits += [cls(limit, "this container") for limit in _cgroup_limits(root)]
        return min(limits, key=lambda each: each.total)

    @property
    def of_programs(self) -> int:
        """Bytes for all programs together."""
        return max(0, self.total - _SERVICE_BYTES)

    def largest_limit_mb(self, workers: int) -> int:
        """Return the largest limit of a program, in MiB, of which there can be one per worker.

        One of them may have a process of tests as well.
        """
        alone = self.of_programs // workers - _PROCESS_BYTES
        with_tests = (self.of_programs - 2 * _PROCESS_BYTES) // (1 + TESTS_MEMORY)
        return max(0, min(alone, with_tests) // _MIB)

    def check(self, workers: int, limit_mb: int | None) -> None:
        """Check that there is memory for one program per worker.

        Args:
            workers: How many programs may use a core at the same time.
            limit_mb: `max_memory_mb`, if it was given.

        Raises:
            ValueError: There is not. The message says what is needed, and what to change.
        """
        largest, required = self.largest_limit_mb(workers), limit_mb or _LEAST_MB
        if required <= largest:
            return
        one = required * _MIB
        with_tests = (1 + TESTS_MEMORY) * one + 2 * _PROCESS_BYTES
        needed = max(workers * (one + _PROCESS_BYTES), with_tests)
        given = f"--workers {workers}" + (f" and max_memory_mb {limit_mb}" if limit_mb else "")
        lower = f", max_memory_mb {largest}" if limit_mb and largest >= _LEAST_MB else ""
        raise ValueError(
            f"{given}: one program per worker, and one process of tests, need {_gib(needed)} of "
            f"memory, and {self}. Give fewer --workers{lower}, or more memory"
        )

    def __str__(self) -> str:
        return f"{self.owner} has {_gib(self.of_programs)} for programs, of {_gib(self.total)}"


def default_limit_mb() -> int:
    """Return the default of `max_memory_mb`: what one program and its tests can have."""
    largest = Capacity.here().largest_limit_mb(workers=1) // _STEP_MB * _STEP_MB
    return max(_LEAST_MB, min(MOST_MB, largest))


def run_bytes(limits: RunLimits, *, tests_apart: bool, writable: int = 0) -> int:
    """Return the most memory that the processes of a run can take together.

    Args:
        tests_apart: Whether its tests have a process of their own.
        writable: Bytes of the folders that it may write to, which are in memory.
    """
    processes, programs = (2, 1 + TESTS_MEMORY) if tests_apart else (1, 1)
    files = _FILES * max(limits.output_bytes, MAX_REPORT_BYTES)
    return programs * limits.memory_bytes + processes * (_PROCESS_BYTES + files) + writable


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


@dataclass(eq=False)
class Share:
    """The memory of a job, or that it waits for."""

    size: int  #: bytes
    waits: bool = False  #: whether it has waited
    passed: "Share | None" = None  #: the one that waited longer, and still did when it was taken


class Memory:
    """Which jobs have memory. On the event loop only.

    The job that waits longest is passed by others only as far as they leave what it needs: so it
    waits for none that began after it, and memory that it cannot use yet is not kept from others.
    """

    def __init__(self, total: int) -> None:
        self.waits = 0  #: how many jobs have waited
        self.total = self._free = total  #: bytes
        self._first: Share | None = None
        self._spare = 0

    def has(self, share: Share) -> bool:
        """Return whether there is memory for a job."""
        size = min(share.size, self.total)  # alone, it gets all
        is_next = self._first in (None, share)
        return size <= self._free and (is_next or size <= self._spare)

    def take(self, share: Share) -> bool:
        """Give a job its memory if there is enough; those that wait longer ask first."""
        size = min(share.size, self.total)
        if self.has(share):
            self._free -= size
            if self._first in (None, share):
                self._first = None
            else:
                share.passed = self._first
                self._spare -= size
            return True
        if self._first is None:
            self._first, self._spare = share, self.total - size
        self.waits += not share.waits
        share.waits = True
        return False

    def give_back(self, share: Share) -> None:
        """Take back the memory of a job that has ended."""
        size = min(share.size, self.total)
        self._free += size
        if share.passed is not None and share.passed is self._first:
            self._spare += size

    def forget(self, share: Share) -> None:
        """End the wait of a job."""
        if self._first is share:
            self._first = None


# What there is


def _machine_bytes(root: Path) -> int:
    """Return the share of the machine's memory; without bound if this is not Linux."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        overcommit = (root / "proc/sys/vm/overcommit_memory").read_text().strip()
    except OSError:
        return 2**63
    # In the mode 2, allocations fail beyond the second one.
    names = {"MemTotal:", "CommitLimit:"} if overcommit == "2" else {"MemTotal:"}
    limits = [int(line.split()[1]) for line in lines if line.split()[0] in names]
    return int(min(limits) * 1024 * _MACHINE_SHARE)


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Return the limits of this process's cgroups, and of those that they are in."""
    for folder in cgroups("memory", root):
        for name in _LIMIT_FILES:
            with contextlib.suppress(OSError, ValueError):  # there is none, or it is `max`
                yield int((folder / name).read_text())
