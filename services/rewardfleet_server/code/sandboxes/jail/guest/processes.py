"""The processes of a run, as the supervisor sees them, and what they use of its limits.

The limit on CPU time decides on programs that compute. The limit on wall time is for programs that
sleep: what counts is only the time in which a program ran or waited by its own doing.
"""

import contextlib
import os
import resource
import time

from .descriptors import LONG_S, Order

#: Where the kernel says what it counts.
PROC = "/proc"
#: The shortest and the longest time between two looks at a run, in seconds.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.05
#: A program sleeps if it used, or waited for, less than this share of a core since the last look.
ASLEEP_BELOW = 0.1
#: Seconds by which a look may be late. If it is later, the machine, or the jail, was paused.
LONGEST_DELAY_S = 0.25


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        self.status = 0  #: its status as `os.wait4` returns it, once it has ended
        self.was_idle = False  #: whether it was ended because its tests had ended
        self.was_killed = False  #: whether SIGKILL from outside ended it: programs cannot send it
        self.usage: resource.struct_rusage | None = None  #: what it used, once it has ended
        self._clock = (~pid << 3) | 2
        self._delays: dict[str, int] = {}

    def cpu_s(self) -> float:
        """Return the seconds of CPU time that it has used."""
        if self.usage is not None:
            return self.usage.ru_utime + self.usage.ru_stime
        return time.clock_gettime(self._clock)

    def delay_s(self) -> float:
        """Return the seconds since the last call in which it was ready and had no core.

        Of its threads, the one counts that waited longest. A sum would let a program that sleeps
        escape its limit by many threads that are ready at once.
        """
        files = of_threads(self.pid, "schedstat")
        before, self._delays = self._delays, {n: int(each.split()[1]) for n, each in files.items()}
        delays = (ns - before.get(thread, 0) for thread, ns in self._delays.items())
        return max(delays, default=0) / 1e9

    def is_ready(self) -> bool:
        """Return whether one of its threads has a core, or waits for one."""
        states = (each.rpartition(b")")[2][:2] for each in of_threads(self.pid, "stat").values())
        return b" R" in states

    def wait(self) -> None:
        _, self.status, self.usage = os.wait4(self.pid, 0)
        os.close(self.descriptor)


class Run:
    """A run and what it has used of its limits."""

    def __init__(self, processes: list[Process], order: Order, cores: int) -> None:
        self.processes = processes
        self.order = order
        self.started = time.monotonic()  #: when the supervisor learned of it (`time.monotonic`)
        self.paused_s = 0.0  #: seconds for which it was paused, because it had no core
        self.is_asleep = False  #: whether it slept between the last two looks
        self.is_long = False  #: whether it has used a core for long
        self._cores = cores  #: how many cores its threads may use at the same time
        self._counts_from = self._looked = self.started  # later by the pauses since then
        self._delay = 0.0
        self._used = self._used_before = self._used_at_look = 0.0
        self._most_used = 0.0

    @property
    def wall_s(self) -> float:
        """The wall time that counts for its limit, and what was waited since the last look.

        It has neither the time in which a process was ready and had no core, nor that in which the
        run, or the machine, was paused.
        """
        return max(time.monotonic() - self._counts_from - self._delay, 0.0)

    @property
    def since_look_s(self) -> float:
        """The seconds since the last look, without pauses."""
        return time.monotonic() - self._looked

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look: before that, no limit can be exceeded by much."""
        cpu_s = self.order.cpu_s if self.is_long else min(self.order.cpu_s, LONG_S)
        left = min((cpu_s - self._most_used) / self._cores, self.order.wall_s - self.wall_s)
        return max(min(left, LONGEST_LOOK_S), SHORTEST_LOOK_S)

    def leave_out(self, seconds: float) -> None:
        """Leave out seconds of wall time that have just passed."""
        self._counts_from += seconds
        self._looked += seconds

    def leave_out_delay(self, slept_s: float, asked_s: float) -> None:
        """Leave out what a sleep took longer than asked for, if the machine was paused."""
        if slept_s > asked_s + LONGEST_DELAY_S:
            self.leave_out(slept_s - asked_s)

    def measure(self) -> bool:
        """Read the CPU time of the processes; return whether the run has become long by it."""
        used, was_long = [each.cpu_s() for each in self.processes], self.is_long
        self._used_before, self._used = self._used, sum(used)
        self._most_used = max(used)
        self.is_long = self._used >= LONG_S
        return self.is_long and not was_long

    def look(self) -> None:
        """Determine what was waited since the last look, and whether the program slept."""
        passed = self.since_look_s
        busy = self._look()
        self.is_asleep = busy < ASLEEP_BELOW * passed and not self.is_ready()

    def look_last(self) -> None:
        """Determine what was waited, if that is more than some ms, after the end of the run."""
        self.measure()
        if self.since_look_s > self._used - self._used_at_look + SHORTEST_LOOK_S:
            self._look()

    def leave_out_pause(self, paused: float) -> None:
        """Take a pause into account that began at a time (`time.monotonic`) and ends now."""
        seconds = time.monotonic() - paused
        self.paused_s += seconds
        if not self.is_ready():  # otherwise it had no core to stop, which the kernel counts
            self.leave_out(seconds)
            for process in self.processes:
                process.delay_s()  # until it had one
        self.is_asleep = False

    def exceeded(self) -> str:
        """Return the limit that the run has exceeded, `cpu` or `wall`; empty if none."""
        if self._most_used >= self.order.cpu_s:
            return "cpu"
        if self.wall_s < self.order.wall_s:
            return ""
        self._look()
        # What waits for a core is left out only once it has it.
        waits = self._used == self._used_before and self.is_ready()
        return "wall" if self.wall_s >= self.order.wall_s and not waits else ""

    def _look(self) -> float:
        """Return the seconds since the last look in which it used a core, or waited for one.

        The kernel counts a wait when it has ended, so this may be more than has passed.
        """
        used, self._used_at_look = self._used - self._used_at_look, self._used
        delay = sum(each.delay_s() for each in self.processes)
        self._delay += delay
        self._looked = time.monotonic()
        return used + delay

    def is_ready(self) -> bool:
        """Return whether one of its processes has a core, or waits for one."""
        return any(each.is_ready() for each in self.processes)

    def signal(self, number: int) -> None:
        for process in self.processes:
            os.kill(process.pid, number)


def of_threads(pid: int, name: str) -> dict[str, bytes]:
    """Return a file of the kernel about each thread of a process; empty if there is none."""
    found = {}
    folder = f"{PROC}/{pid}/task"
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(folder):
            path = f"{folder}/{thread}/{name}"
            with contextlib.suppress(OSError), open(path, "rb") as file:  # the thread has ended
                found[thread] = file.read(1000)
    return found


def counts_delays() -> bool:
    """Return whether the kernel counts for how long processes are ready and have no core.

    It does with CONFIG_SCHED_INFO. Otherwise there is no such file, or no turn is counted.
    """
    counts = of_threads(os.getpid(), "schedstat").values()
    return any(each.split()[2] != b"0" for each in counts)
