"""The supervisor of a jail. It watches the runs, and removes what they leave behind.

It never receives programs or outputs: the service puts them into files, whose descriptors go to the
zygote, which reports the processes that it starts. A message on the channel is a JSON object, and
one packet. From outside come the numbers of runs to stop, and that another job needs the
core. The supervisor reports how a run ended, when it has taken long, when a program falls asleep,
and when it wakes up. Then, and when its core is needed, it is paused until a core is granted.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
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
    mapped_bytes,
    restrict_files,
)
from .descriptors import KILLED, ORDER, Order, open_streams
from .machine import Machine, give_names
from .processes import LONGEST_LOOK_S, PROC, Process, Run, counts_delays
from .program import NO_PROCESSES, prepare
from .zygote import STARTED

#: Bytes of the longest message.
MAX_MESSAGE = 2**17
#: How many packages a message names.
NAMES = 100
#: Bytes of mappings whose page tables are worth copying.
LARGE_BYTES = 2**20
#: The C library's function: Python's own also renews locks of threads that there are none of.
fork: Callable[[], int] = ctypes.PyDLL(None).fork

#: Time for a program to write its last output once its tests have ended, in seconds.
LONGEST_FLUSH_S = 0.5
#: Seconds of a run between two messages to the service.
SILENCE_S = 5.0
#: Files that a run may make in each folder: their names take memory that no limit on size counts.
MAX_FILES = 10_000


def main() -> NoReturn:  # noqa: PLR0915 - the order matters
    """Prepare the jail, start the zygote, and serve runs."""
    # The descriptors of a run come before these.
    channel, orders = (keep_open(int(number)) for number in sys.argv[1:3])
    end_with_parent()
    config = receive(channel)
    missing = preload(config["preload"])
    explain_refusals()
    give_names()
    if not config["writable"]:  # it would raise an error, also to packages that only ask for it
        importlib.import_module("tempfile").tempdir = os.environ["HOME"]  # type: ignore[attr-defined]
    environment = packages()
    random.seed(0)
    base_bytes = mapped_bytes()
    copy_page_tables()
    # If memory runs out, programs are ended first, not the service.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    os.chdir(config["writable"][0] if config["writable"] else "/")
    libc.prctl(PR_SET_DUMPABLE, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    landlock = (
        restrict_files([*config["readable"], PROC], config["writable"]) if config["landlock"] else 0
    )
    open_streams()
    reader, writer = (keep_open(end.detach()) for end in socket.socketpair())
    os.closerange(3, MAX_DESCRIPTORS)
    limit_all_runs()
    filters = map(bytes.fromhex, config["filters"])
    own, of_run, asking = (Filter(len(each) // 8, each) for each in filters)
    # Without Landlock, the answers could be evaded, and the memory of the tests could be read.
    asks = bool(landlock and asking.count)
    limits = (config["processes"], base_bytes, os.getpid())
    confinement = Confinement(of_run, asks, *limits)
    program = prepare()
    gc.collect()
    if hasattr(libc, "malloc_trim"):  # else it is another C library than glibc
        libc.malloc_trim(0)  # every fork copies the page tables of what is mapped
    gc.freeze()
    zygote_pid = fork()
    if not zygote_pid:
        try:
            channel.close()
            reader.close()
            if landlock:  # what the kernel counts is for the supervisor only
                restrict_files(config["readable"], config["writable"])
            # Whoever opens a file from here on waits for the supervisor.
            listener = (asking if asks else own).install(asks=asks)
            socket.send_fds(writer, [b"."], [listener] if asks else [])
            os.closerange(3, MAX_DESCRIPTORS)
            libc.prctl(PR_SET_DUMPABLE, int(asks))  # so that it is answered while it imports
            zygote.preload(config["modules"])
            libc.prctl(PR_SET_DUMPABLE, 0)
            zygote.serve(orders, writer.fileno(), confinement, program)
        finally:
            os._exit(1)
    own.install()
    orders.close()
    writer.close()
    supervisor = Supervisor(channel, reader.fileno(), config, zygote_pid)
    for listener in socket.recv_fds(reader, 1, 1)[1]:
        supervisor.machine = Machine(listener, [*config["readable"], *config["writable"]])
        supervisor.poll.register(listener, select.POLLIN)
    for first in range(0, len(environment), NAMES):
        send(channel, {"packages": environment[first : first + NAMES]})
    versions = {"landlock": landlock, "python": sys.version.split()[0]}
    send(channel, {**versions, "missing": missing, "counts_delays": counts_delays()})
    while True:
        supervisor.serve()


def keep_open(number: int) -> socket.socket:
    """Return a socket under a descriptor that runs do not use."""
    with socket.socket(fileno=number) as given:
        kept = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, MAX_DESCRIPTORS)
        return socket.socket(fileno=kept)


def preload(names: list[str]) -> list[tuple[str, str]]:
    """Import modules that programs often use; return those that fail, with the reasons."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module raises
            missing.append((name, f"{type(error).__name__}: {error}"[:300]))
    return missing


def copy_page_tables() -> None:
    """Let forks copy the page tables of the interpreter's file, not fault for each part of it.

    The kernel copies those of a mapping that has a page of its own, as one has that was written to.
    """
    with (
        contextlib.suppress(OSError),  # a kernel may refuse it
        open("/proc/self/maps") as maps,
        open("/proc/self/mem", "r+b", buffering=0) as memory,
    ):
        for line in maps:
            addresses, rights, *_ = line.split()
            start, end = (int(each, 16) for each in addresses.split("-"))
            if rights in {"r--p", "r-xp"} and end - start >= LARGE_BYTES:
                os.pwrite(memory.fileno(), os.pread(memory.fileno(), 1, start), start)


def explain_refusals() -> None:
    """Make the functions that start a process say why they fail; the filter refuses them all."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(errno.EPERM, NO_PROCESSES)

    def refuse_command(command: Any) -> int:
        """Fail as `os.system` does, which raises nothing: some programs only clear the screen."""
        sys.stderr.write(f"os.system({command!r}): {NO_PROCESSES}\n")
        return -1

    def check(function: Any, path: Any, *args: Any, **named: Any) -> None:
        """Call a function that the filter ignores, also for a file that is missing."""
        if named.get("dir_fd") is None:
            os.stat(path)
        function(path, *args, **named)

    for name in ("chmod", "utime"):
        setattr(os, name, functools.partial(check, getattr(os, name)))
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


def receive(channel: socket.socket) -> dict[str, Any]:
    message = channel.recv(MAX_MESSAGE)
    if not message:
        os._exit(0)  # the service has ended
    return dict(json.loads(message))


def send(channel: socket.socket, content: dict[str, Any]) -> None:
    channel.send(json.dumps(content).encode())


class Supervisor:
    """Supervises one run at a time."""

    def __init__(self, channel: socket.socket, runs: int, config: Any, zygote_pid: int) -> None:
        self.channel = channel  #: leads to the service
        self.runs = runs  #: descriptor from which the runs that the zygote started are read
        self.zygote_pid = zygote_pid
        self.machine: Machine | None = None  #: answers programs that open files
        self.stopped = -1  #: the number of the last run that the service stopped
        self.must_pause = False  #: whether the program must be paused until a core is granted
        self.poll = select.poll()
        self.poll.register(channel, select.POLLIN)
        self.poll.register(runs, select.POLLIN)
        self.writable: list[str] = config["writable"]
        self.kept: list[str] = config["kept"]  #: paths in these folders that are not removed
        # Imported after the zygote has started: what it needs would make every fork slower.
        self.remove_tree = importlib.import_module("shutil").rmtree
        self.cores = len(os.sched_getaffinity(0))
        self.mounts = self.kept_mounts()
        self.empty = self.used_files()

    def serve(self) -> None:
        """Wait for a run, supervise it, and report how it ended."""
        while self.runs not in (ready := self.ready(None)):
            if ready:
                self.receive_message()  # on a run that has ended, or that the zygote is starting
        message = os.read(self.runs, ORDER.size + STARTED.size)
        if not message:
            self.end_like_zygote()
        order = Order._make(ORDER.unpack_from(message))
        started, *pids = STARTED.unpack_from(message, ORDER.size)
        processes = [Process(pid) for pid in pids if pid > 0]
        if min(pids) < 0:
            self.end(processes)
            send(self.channel, {"refused": "no process can be made now"})
            return
        run = Run(processes, order, self.cores)
        stopped = self.watch(run)
        ended, charged_s, used_s = time.monotonic(), run.wall_s, time.thread_time()
        is_unclean = self.clear()
        cleaned, clean_s = time.monotonic(), time.thread_time() - used_s
        status = 0 if processes[0].was_idle else os.waitstatus_to_exitcode(processes[0].status)
        result = {  # by the fields of a `RunResult`
            "exit_code": status,
            "stopped": stopped,
            "cpu_ms": max(each.cpu_s() for each in processes) * 1000,
            "charged_ms": (charged_s + clean_s) * 1000,
            "fork_ms": (run.started - started) * 1000,
            "run_ms": (ended - run.started - run.paused_s) * 1000,
            "clean_ms": (cleaned - ended) * 1000,
        }
        is_killed = any(each.was_killed for each in processes)
        send(self.channel, {"result": result, "killed": is_killed, "unclean": is_unclean})

    def ready(self, timeout_ms: float | None) -> list[int]:
        """Wait for messages, or the end of a process that is watched; return what is ready."""
        ready = [descriptor for descriptor, _ in self.poll.poll(timeout_ms)]
        if self.machine is not None and self.machine.listener in ready:
            ready.remove(self.machine.listener)
            if not ready:  # else the zygote may have ended
                self.machine.answer()
        return ready

    def receive_message(self) -> dict[str, Any]:
        """Receive a message from the service, and remember what it asks for."""
        message = receive(self.channel)
        self.stopped = message.get("stop", self.stopped)
        self.must_pause |= "pause" in message
        return message

    def watch(self, run: Run) -> str:
        """Wait for the end of a run, or end it; return why it was stopped.

        The run ends with its last process: the program, or the one with the tests. While the
        program sleeps, its core is lent to others.
        """
        last = run.processes[-1].descriptor
        self.poll.register(last, select.POLLIN)
        stopped, reported = "", run.started
        while not stopped:
            timeout_s = run.next_look_s
            asked = time.monotonic()
            ready = self.ready(timeout_s * 1000 + 1)
            run.leave_out_delay(time.monotonic() - asked, timeout_s)
            if last in ready:
                break
            if self.runs in ready:
                self.end_like_zygote()
            if ready:
                self.receive_message()
            if asked - reported > SILENCE_S:
                send(self.channel, {"alive": True})
                reported = asked
            if run.measure():
                send(self.channel, {"long": True})
            stopped = self.look(run)
        self.poll.unregister(last)
        run.look_last()
        self.end(run.processes, stopped=bool(stopped))
        return stopped

    def look(self, run: Run) -> str:
        """Report whether a program sleeps, and pause it if it must; return why it must end."""
        if run.since_look_s >= LONGEST_LOOK_S:
            was_asleep = run.is_asleep
            run.look()
            if run.is_asleep and not was_asleep:
                send(self.channel, {"asleep": True})
            self.must_pause |= was_asleep and not run.is_asleep
        # A sleep needs no core, and goes on while its process is paused, which counts for no limit.
        if self.must_pause and run.is_ready() and self.stopped != run.order.number:
            self.pause(run)
        if self.stopped == run.order.number:
            return "caller"
        too_many = max(self.used_files(), default=0) > MAX_FILES
        return run.exceeded() or ("files" if too_many else "")

    def end(self, processes: list[Process], *, stopped: bool = True) -> None:
        """Wait for processes. Those that have not ended are ended."""
        # Without its tests, a program has nothing to do but to write what is in its buffers.
        wait_s = 0.0 if stopped else LONGEST_FLUSH_S
        for process in reversed(processes):
            has_ended = bool(select.select([process.descriptor], [], [], wait_s)[0])
            process.was_idle = not stopped and not has_ended
            if not has_ended:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            process.was_killed = has_ended and process.status == signal.SIGKILL

    def pause(self, run: Run) -> None:
        """Pause a program until it gets a core, or is stopped."""
        run.look()
        paused = time.monotonic()
        run.signal(signal.SIGSTOP)
        send(self.channel, {"asleep": False})
        while "core" not in self.receive_message() and self.stopped != run.order.number:
            pass
        self.must_pause = False
        run.leave_out_pause(paused)
        run.signal(signal.SIGCONT)

    def end_like_zygote(self) -> NoReturn:
        """End the jail, as its zygote has ended; the exit status says whether by SIGKILL."""
        _, status = os.waitpid(self.zygote_pid, 0)
        os._exit(KILLED if status == signal.SIGKILL else 1)

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
