"""The supervisor of a jail. It watches the runs, and removes what they leave behind.

It never receives programs or outputs: the service puts them into files, whose descriptors go to the
zygote, which reports the processes that it starts. A message on the channel is two lengths, a JSON
object and bytes. From outside come the numbers of runs to stop. The supervisor reports how a run
ended, when a program falls asleep, and when it wakes up: then it is paused until a core is granted.
"""

import contextlib
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import zygote
from .confinement import (
    MAX_DESCRIPTORS,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    Confinement,
    Filter,
    end_with_parent,
    libc,
    limit_all_runs,
    restrict_files,
)
from .descriptors import ORDER, Order
from .program import NO_PROCESSES, warm_up
from .streams import open_streams
from .zygote import STARTED

LENGTHS = struct.Struct("!II")
#: The C library's function: Python's own also renews locks of threads that there are none of.
fork: Callable[[], int] = ctypes.PyDLL(None).fork

#: The shortest and the longest time between two looks at a run, in seconds.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.05
#: Time for a program to write its last output once its tests have ended, in seconds.
LONGEST_FLUSH_S = 0.5
#: A program sleeps if it used less than this share of a core since the last look.
ASLEEP_BELOW = 0.1
#: Files that a run may make in each folder: their names take memory that no limit on size counts.
MAX_FILES = 10_000


def main() -> NoReturn:
    """Prepare the jail, start the zygote, and serve runs."""
    # The descriptors of a run come before these.
    channel, orders = (keep_open(int(number)) for number in sys.argv[1:3])
    end_with_parent()
    config, seccomp = receive(channel)
    missing = preload(config["preload"])
    explain_refusals()
    environment = packages()
    random.seed(0)
    with open("/proc/self/statm") as statm:
        base_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    # If memory runs out, programs are ended first, not the service.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    os.environ.clear()
    os.chdir(config["writable"][0] if config["writable"] else "/")
    libc.prctl(PR_SET_DUMPABLE, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    landlock = restrict_files(config["readable"], config["writable"]) if config["landlock"] else 0
    open_streams()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, MAX_DESCRIPTORS) for end in os.pipe())
    os.closerange(3, MAX_DESCRIPTORS)
    limit_all_runs()
    split = config["supervisor_filter_bytes"]
    Filter.of(bytes(seccomp[:split])).install()
    run_filter = Filter.of(bytes(seccomp[split:]))
    confinement = Confinement(run_filter, config["processes"], base_bytes, os.getpid())
    warm_up()
    gc.collect()
    if hasattr(libc, "malloc_trim"):  # else it is another C library than glibc
        libc.malloc_trim(0)  # every fork copies the page tables of what is mapped
    gc.freeze()
    if not fork():
        try:
            channel.close()
            os.close(reader)
            zygote.serve(orders, writer, confinement)
        finally:
            os._exit(1)
    orders.close()
    os.close(writer)
    supervisor = Supervisor(channel, reader, config["writable"], config["kept"])
    handshake = {"landlock": landlock, "python": sys.version.split()[0], "missing": missing}
    send(channel, {**handshake, "environment": environment})
    while True:
        supervisor.serve()


def keep_open(number: int) -> socket.socket:
    """Return a socket under a descriptor that runs do not use."""
    given = socket.socket(fileno=number)
    kept = socket.socket(fileno=fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, MAX_DESCRIPTORS))
    given.close()
    return kept


def preload(names: list[str]) -> list[tuple[str, str]]:
    """Import modules that programs often use; return those that fail, with the reasons."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module raises
            missing.append((name, f"{type(error).__name__}: {error}"[:300]))
    return missing


def explain_refusals() -> None:
    """Make the functions that start a process say why they fail; the filter refuses them all."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(errno.EPERM, NO_PROCESSES)

    def refuse_command(command: Any) -> int:
        """Fail as `os.system` does, which raises nothing: some programs only clear the screen."""
        sys.stderr.write(f"os.system({command!r}): {NO_PROCESSES}\n")
        return -1

    real_kill = os.kill

    def send_signal(process: int, number: int, frame: types.FrameType) -> None:
        """Call the program's own handler, as the filter refuses to send signals."""
        handler = signal.getsignal(number) if number and process == os.getpid() else None
        if callable(handler):
            handler(number, frame)
        elif handler is not signal.SIG_IGN:
            real_kill(process, number)

    os.kill = lambda process, number: send_signal(process, number, sys._getframe(1))
    signal.raise_signal = lambda number: send_signal(os.getpid(), number, sys._getframe(1))
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve"):
        setattr(os, name, refuse)
    os.system = refuse_command
    importlib.import_module("_posixsubprocess").fork_exec = refuse  # type: ignore[attr-defined]
    if "subprocess" in sys.modules:  # which has imported it already
        sys.modules["subprocess"]._fork_exec = refuse  # type: ignore[attr-defined]


def packages() -> list[str]:
    """Return what can be imported besides the standard library: verdicts depend on it."""
    found = [sys.version]
    for folder in sys.path:
        if folder.endswith("-packages") and os.path.isdir(folder):
            found += sorted(os.listdir(folder))  # the names of *.dist-info have the versions
    return found


# The channel


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytearray]:
    """Wait for a message: an object and bytes."""
    header_size, blob_size = LENGTHS.unpack(receive_exactly(channel, LENGTHS.size))
    header = json.loads(receive_exactly(channel, header_size))
    return header, receive_exactly(channel, blob_size)


def receive_exactly(channel: socket.socket, size: int) -> bytearray:
    """Wait for so many bytes."""
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size:
        count = channel.recv_into(view[got:])
        if not count:
            os._exit(0)  # the service has ended
        got += count
    return content


def send(channel: socket.socket, header: dict[str, Any]) -> None:
    """Send a message without bytes."""
    text = json.dumps(header).encode()
    channel.sendall(LENGTHS.pack(len(text), 0) + text)


class Process:
    """A process of a run.

    Args:
        pid: Its id.

    Attributes:
        status: As in `os.wait4`, once it has ended.
        usage: What it used, once it has ended.
        was_idle: Whether it was ended because its tests had ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        self.status = 0
        self.was_idle = False
        self.usage: resource.struct_rusage | None = None
        self._clock = (~pid << 3) | 2

    def cpu_s(self) -> float:
        """Return the seconds of CPU time that it has used."""
        if self.usage is not None:
            return self.usage.ru_utime + self.usage.ru_stime
        return time.clock_gettime(self._clock)

    def wait(self) -> None:
        """Wait for its end."""
        _, self.status, self.usage = os.wait4(self.pid, 0)
        os.close(self.descriptor)


class Supervisor:
    """Supervises one run at a time.

    Args:
        channel: Leads to the service.
        runs: Descriptor from which the runs that the zygote started are read.
        writable: Folders that programs may write to.
        kept: Paths in these that are not removed.

    Attributes:
        stopped: The number of the last run that the service stopped.
    """

    def __init__(
        self, channel: socket.socket, runs: int, writable: list[str], kept: list[str]
    ) -> None:
        self.channel = channel
        self.runs = runs
        self.stopped = -1
        self.poll = select.poll()
        self.poll.register(channel, select.POLLIN)
        self.poll.register(runs, select.POLLIN)
        self.writable = writable
        self.kept = kept
        # Imported after the zygote has started: what it needs would make every fork slower.
        self.remove_tree = importlib.import_module("shutil").rmtree
        self.cores = len(os.sched_getaffinity(0))
        self.mounts = self.kept_mounts()
        self.empty = self.used_files()

    def serve(self) -> None:
        """Wait for a run, supervise it, and report how it ended."""
        while self.runs not in (ready := self.ready(None)):
            if ready:
                self.receive_stop()  # of a run that has ended, or that the zygote is starting
        message = os.read(self.runs, ORDER.size + STARTED.size)
        if not message:
            os._exit(1)  # the zygote has ended
        order = Order._make(ORDER.unpack_from(message))
        started, *pids = STARTED.unpack_from(message, ORDER.size)
        processes = [Process(pid) for pid in pids if pid > 0]
        if min(pids) < 0:
            self.end(processes)
            send(self.channel, {"refused": "no process can be made now"})
            return
        forked = time.monotonic()
        stopped, paused = self.watch(processes, order, started)
        ended = time.monotonic()
        is_unclean = self.clear()
        cleaned = time.monotonic()
        report = {
            "exit": 0 if processes[0].was_idle else os.waitstatus_to_exitcode(processes[0].status),
            "stopped": stopped,
            "cpu_ms": max(each.cpu_s() for each in processes) * 1000,
            "fork_ms": (forked - started) * 1000,
            "run_ms": (ended - forked - paused) * 1000,
            "clean_ms": (cleaned - ended) * 1000,
            "unclean": is_unclean,
        }
        send(self.channel, report)

    def ready(self, timeout_ms: float | None) -> list[int]:
        """Wait for messages, or the end of a process that is watched; return what is ready."""
        return [descriptor for descriptor, _ in self.poll.poll(timeout_ms)]

    def receive_stop(self) -> dict[str, Any]:
        """Receive a message from the service, and remember which run it stops."""
        message, _ = receive(self.channel)
        self.stopped = message.get("stop", self.stopped)
        return message

    def watch(self, processes: list[Process], order: Order, started: float) -> tuple[str, float]:
        """Wait for the end of a run, or end it; return why it was stopped, and seconds of pauses.

        The run ends with its last process: the program, or the one with the tests. While the
        program sleeps, its core is lent to others.
        """
        last = processes[-1].descriptor
        self.poll.register(last, select.POLLIN)
        stopped, cpu_left, wall_left = "", order.cpu_s, order.wall_s
        asleep, paused, looked, used = False, 0.0, started, 0.0
        while not stopped:
            seconds = max(min(cpu_left / self.cores, LONGEST_LOOK_S), SHORTEST_LOOK_S)
            ready = self.ready(min(seconds, wall_left) * 1000 + 1)
            if last in ready:
                break
            if self.runs in ready:
                os._exit(1)  # the zygote has ended
            if ready:
                self.receive_stop()
            if self.stopped == order.number:
                stopped = "caller"
            now, used_s = time.monotonic(), [each.cpu_s() for each in processes]
            cpu = sum(used_s)
            if not stopped and now - looked >= LONGEST_LOOK_S:
                was_asleep, asleep = asleep, cpu - used < ASLEEP_BELOW * (now - looked)
                if asleep and not was_asleep:
                    send(self.channel, {"asleep": True})
                elif was_asleep and not asleep:
                    stopped = "" if self.wait_for_core(processes, order.number) else "caller"
                    paused += time.monotonic() - now
                looked, used = time.monotonic(), cpu
            cpu_left = order.cpu_s - max(used_s)
            wall_left = started + paused + order.wall_s - time.monotonic()
            if min(cpu_left, wall_left) <= 0:
                stopped = stopped or ("cpu" if cpu_left <= 0 else "wall")
            elif max(self.used_files(), default=0) > MAX_FILES:
                stopped = stopped or "files"
        self.poll.unregister(last)
        self.end(processes, stopped=bool(stopped))
        return stopped, paused

    def end(self, processes: list[Process], *, stopped: bool = True) -> None:
        """Wait for processes. Those that have not ended are ended."""
        for process in reversed(processes):
            poll = select.poll()
            poll.register(process.descriptor, select.POLLIN)
            # Without its tests, a program has nothing to do but to write what is in its buffers.
            process.was_idle = not stopped and not poll.poll(LONGEST_FLUSH_S * 1000)
            if stopped or process.was_idle:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def wait_for_core(self, processes: list[Process], number: int) -> bool:
        """Pause a program that woke up until it gets a core; return whether it did."""
        self.signal(processes, signal.SIGSTOP)
        send(self.channel, {"asleep": False})
        while "core" not in self.receive_stop() and self.stopped != number:
            pass
        self.signal(processes, signal.SIGCONT)
        return self.stopped != number

    def signal(self, processes: list[Process], number: int) -> None:
        """Send a signal to processes."""
        for process in processes:
            os.kill(process.pid, number)

    def used_files(self) -> list[int]:
        """Return how many files, folders and links each folder has, itself included."""
        states = [os.statvfs(folder) for folder in self.writable]
        return [state.f_files - state.f_ffree for state in states]

    def clear(self) -> bool:
        """Remove what a run left; return whether that cannot be done, or takes too long."""
        used = self.used_files()
        if max(used, default=0) > MAX_FILES or self.mounts != self.kept_mounts():
            return True
        try:
            for folder in self.writable if used != self.empty else ():
                self.empty_folder(folder)
        except (OSError, RecursionError):
            return True
        return os.waitpid(-1, os.WNOHANG) != (0, 0)  # another child than the zygote has ended

    def kept_mounts(self) -> list[tuple[int, int]]:
        """Return what is at the paths to keep: a program could rename folders above them."""
        try:
            return [(state.st_dev, state.st_ino) for state in map(os.stat, self.kept)]
        except OSError:
            return []

    def empty_folder(self, folder: str) -> None:
        """Remove everything but the paths to keep."""
        for entry in list(os.scandir(folder)):
            if entry.path in self.kept:
                continue
            if any(path.startswith(entry.path + "/") for path in self.kept):
                self.empty_folder(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                self.remove_tree(entry.path)
            else:
                os.unlink(entry.path)
