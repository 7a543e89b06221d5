"""The warden: what runs inside a jail, a warm fork server for one program after another.

It is alone in there: it gets its source by a pipe, imports the standard library only, and knows
no expected output. Each run of a program is a fork of its own, which takes its limits and its
seccomp filter upon itself before the program's first line; it can make no process and send no
signal, so that nothing of it is left when it has ended. What a run wrote is handed outside as it
is; the verdict is made there.

A message is two lengths, a JSON object and bytes. From outside come runs (the program with a
submission's first, then standard input) and, while one is under way, an empty object: stop it. The
warden tells when a program falls asleep, and when it wakes up: then it is paused until a core is
granted.
"""

import atexit
import builtins
import collections
import contextlib
import ctypes
import decimal
import errno
import fcntl
import fractions
import functools
import gc
import importlib
import itertools
import json
import linecache
import marshal
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

LENGTHS = struct.Struct("!II")

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2

#: Landlock's syscalls and rights, which the C library has no names for.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR, WRITE_FILE, EXECUTE = 1 << 2, 1 << 3, 1 << 1, 1 << 0
#: All rights on files that a kernel of this version of Landlock knows.
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
ALL_FILE_RIGHTS = (1 << 16) - 1  # from version 5 on

ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

#: The main thread's stack may grow to this; more than Linux leaves it is of no use.
STACK_BYTES = 120 * 2**20
MAX_DESCRIPTORS = 256
#: How deep a returned value may be nested.
MAX_DEPTH = 250
#: Whole numbers up to this go as JSON numbers, larger ones in hexadecimal.
MAX_PLAIN_INT = 2**63
#: How often a run is looked at, at most and at least.
SHORTEST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.002, 0.05
#: A program sleeps if it used less than this share of a core since the last look.
ASLEEP_BELOW = 0.1
#: Files that a run may make in each folder: their names take memory that no size counts.
MAX_FILES = 10_000
#: Bytes of a report for the lines of answers that are too large for it.
REPORT_SPARE_BYTES = 2**17
#: The exit status of Python if its last output could not be written.
LOST_OUTPUT = 120
#: Words of programs whose objects may print when they are destroyed, e.g. files and generators. To
#: destroy the objects of all others would take some of them a third of their time, for nothing.
PRINTS_LAST = re.compile(
    r"__del__|ctypes|open|\bio\b|File|Wrapper|Writer|type\(|__class__|detach|weakref|yield|async|exec|eval|__import__"
    r"|import_module"
)
NO_PROCESSES = "the jail does not allow new processes"

libc: Any = ctypes.CDLL(None, use_errno=True)
#: The C library's: Python's own renews locks of threads that a warden does not have, and half of
#: a run's time goes there. It would also give `random` another state in each run.
fork: Callable[[], int] = ctypes.PyDLL(None).fork


class Filter(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))

    @classmethod
    def of(cls, program: bytes) -> "Filter":
        return cls(len(program) // 8, program)  # which keeps the bytes alive


def take_filter(program: Filter) -> None:
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def main() -> None:
    # Out of the way of the descriptors that a run gets.
    given = socket.socket(fileno=int(sys.argv[1]))
    channel = socket.socket(fileno=fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, MAX_DESCRIPTORS))
    given.close()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orders, seccomp = receive(channel)
    missing = preload(orders["preload"])
    explain_refusals()
    environment = packages()
    random.seed(0)
    with open("/proc/self/statm") as statm:
        base_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    # Where memory runs out, programs go first, not the service.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    os.environ.clear()
    os.chdir(orders["writable"][0] if orders["writable"] else "/")
    libc.prctl(PR_SET_DUMPABLE, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    landlock = restrict_files(orders["readable"], orders["writable"]) if orders["landlock"] else 0
    open_streams()
    limit_all_runs()
    split = orders["warden_filter_bytes"]
    take_filter(Filter.of(bytes(seccomp[:split])))
    warden = Warden(channel, orders, base_bytes, Filter.of(bytes(seccomp[split:])))
    gc.collect()
    gc.freeze()
    hello = {"landlock": landlock, "python": sys.version.split()[0], "missing": missing}
    send(channel, {**hello, "environment": environment})
    while True:
        warden.serve(*receive(channel))


def open_streams() -> None:
    """Make the standard streams once for all runs, each of which puts its own files below them."""
    for number in range(3):
        os.dup2(os.memfd_create("none"), number)
    kept_open: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = open(0, errors="surrogateescape", **kept_open)
    sys.stdout = open(1, "w", errors="surrogateescape", newline="\n", **kept_open)
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, **kept_open)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def preload(names: list[str]) -> list[tuple[str, str]]:
    """Import what programs usually import; return what cannot be imported, with the reasons."""
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
    """What may be imported beside the standard library: verdicts hang on it."""
    found = [sys.version]
    for place in sys.path:
        if place.endswith("-packages") and os.path.isdir(place):
            found += sorted(os.listdir(place))  # versions stand in the names of *.dist-info
    return found


def restrict_files(readable: list[str], writable: list[str], *, may_execute: bool = False) -> int:
    """Close all files to this process and its children, but for these; also TCP, where it can.

    Returns Landlock's version; 0 where the kernel has none.
    """
    version = int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))
    if version < 1:
        return 0
    rights = FILE_RIGHTS.get(version, ALL_FILE_RIGHTS)
    handled = (rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)  # files, TCP, scopes
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", *handled)[:size]
    ruleset = checked(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, size, 0))
    devices = [("/dev/" + name, READ_FILE | WRITE_FILE) for name in ("null", "zero", "full")]
    devices += [("/dev/" + name, READ_FILE) for name in ("random", "urandom")]
    reading = READ_FILE | READ_DIR | (EXECUTE if may_execute else 0)
    allowed = [(path, reading) for path in readable] + devices
    allowed += [(path, rights & ~EXECUTE) for path in writable]
    for path, wanted in allowed:
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        fitting = wanted if os.path.isdir(path) else wanted & (READ_FILE | WRITE_FILE)
        rule = struct.pack("=Qi", fitting, place)
        checked(libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0))
        os.close(place)
    checked(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return version


def checked(result: Any) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock: " + os.strerror(ctypes.get_errno()))
    return int(result)


# The channel


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytearray]:
    header_size, blob_size = LENGTHS.unpack(receive_exactly(channel, LENGTHS.size))
    header = json.loads(receive_exactly(channel, header_size))
    return header, receive_exactly(channel, blob_size)


def receive_exactly(channel: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size:
        count = channel.recv_into(view[got:])
        if not count:
            os._exit(0)  # the service has gone
        got += count
    return content


def send(channel: socket.socket, header: dict[str, Any], *blobs: bytes) -> None:
    text = json.dumps(header).encode()
    lengths = LENGTHS.pack(len(text), sum(map(len, blobs)))
    channel.sendall(b"".join((lengths, text, *blobs)))  # at once: each part would wake the other


# One run, seen from the parent


class Warden:
    """Runs programs, one at a time."""

    def __init__(
        self, channel: socket.socket, orders: dict[str, Any], base_bytes: int, seccomp: Filter
    ) -> None:
        self.channel = channel
        self.writable = orders["writable"]
        self.processes = orders["processes"]
        self.base_bytes = base_bytes
        self.filter = seccomp
        self.cores = len(os.sched_getaffinity(0))
        self.kept = orders["kept"]
        self.mounts = self.mounts_kept()
        self.empty = self.used_files()
        self.source = ""
        self.prints_last = False
        self.code: bytes | None = None  # the program, compiled by its first run

    def serve(self, order: dict[str, Any], stdin: bytearray) -> None:
        if "setup" not in order:
            return  # a stop, or a core, that came after the end
        started = time.monotonic()
        if "source" in order:
            self.source, self.code = order.pop("source"), None
            self.prints_last = PRINTS_LAST.search(self.source + order["setup"]) is not None
        files = Files(stdin, order["arguments"], wants_code=self.code is None)
        stdin.clear()  # or it would count as memory of the program's
        pid = fork()
        if pid < 0:
            files.close()
            send(self.channel, {"refused": "no process can be made now"})
            return
        if not pid:
            try:
                Run(self, order, files).go()
            finally:
                os._exit(1)
        forked = time.monotonic()
        stopped, status, usage, paused = self.watch(pid, order, started)
        ended = time.monotonic()
        if self.code is None:
            self.code = files.sealed_code()
        most, most_report = order["output_bytes"] + 1, order["report_bytes"] + 1
        outputs = [contents(file, most) for file in (files.out, files.err)]
        outputs.append(contents(files.report, most_report))
        files.close()
        odd = self.clear()
        cleaned = time.monotonic()
        header = {
            "exit": os.waitstatus_to_exitcode(status),
            "stopped": stopped,
            "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1000,
            "fork_ms": (forked - started) * 1000,
            "run_ms": (ended - forked - paused) * 1000,
            "clean_ms": (cleaned - ended) * 1000,
            "lengths": [len(output) for output in outputs],
            "odd": odd,
        }
        send(self.channel, header, *outputs)

    def watch(
        self, pid: int, order: dict[str, Any], started: float
    ) -> tuple[str, int, resource.struct_rusage, float]:
        """Wait for the run's end, or make it end; the limit is its CPU, not the clock.

        While the program sleeps, its core is lent to others. Returns why it was stopped, its exit
        status, its usage, and for how many seconds it had to wait for a core.
        """
        process = os.pidfd_open(pid)
        cpu_clock = (~pid << 3) | 2
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        stopped, cpu_left, wall_left = "", order["cpu_s"], order["wall_s"]
        asleep, paused, looked, used = False, 0.0, started, 0.0
        while not stopped:
            seconds = max(min(cpu_left / self.cores, LONGEST_LOOK_SECONDS), SHORTEST_LOOK_SECONDS)
            events = poll.poll(min(seconds, wall_left) * 1000 + 1)
            if any(descriptor == process for descriptor, _ in events):
                break
            if events:
                receive(self.channel)
                stopped = "caller"
            now, cpu = time.monotonic(), time.clock_gettime(cpu_clock)
            if not stopped and now - looked >= LONGEST_LOOK_SECONDS:
                was_asleep, asleep = asleep, cpu - used < ASLEEP_BELOW * (now - looked)
                if asleep and not was_asleep:
                    send(self.channel, {"asleep": True})
                elif was_asleep and not asleep:
                    stopped = "" if self.wait_for_core(pid) else "caller"
                    paused += time.monotonic() - now
                looked, used = time.monotonic(), cpu
            cpu_left = order["cpu_s"] - cpu
            wall_left = started + paused + order["wall_s"] - time.monotonic()
            if min(cpu_left, wall_left) <= 0:
                stopped = stopped or ("cpu" if cpu_left <= 0 else "wall")
            elif max(self.used_files(), default=0) > MAX_FILES:
                stopped = stopped or "files"
        if stopped:
            os.kill(pid, signal.SIGKILL)
        os.close(process)
        _, status, usage = os.wait4(pid, 0)
        return stopped, status, usage, paused

    def wait_for_core(self, pid: int) -> bool:
        """Pause a program that woke up until it gets a core; return whether it did."""
        os.kill(pid, signal.SIGSTOP)
        send(self.channel, {"asleep": False})
        order, _ = receive(self.channel)
        os.kill(pid, signal.SIGCONT)
        return bool(order)

    def used_files(self) -> list[int]:
        """How many files, folders and links each folder holds, itself among them."""
        states = [os.statvfs(folder) for folder in self.writable]
        return [state.f_files - state.f_ffree for state in states]

    def clear(self) -> bool:
        """Take away what the run left; return whether that cannot be done, or takes too long."""
        used = self.used_files()
        if max(used, default=0) > MAX_FILES or self.mounts != self.mounts_kept():
            return True
        try:
            for folder in self.writable if used != self.empty else ():
                self.empty_folder(folder)
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        except (OSError, RecursionError):
            return True
        return True  # there is a child: a run that made one

    def mounts_kept(self) -> list[tuple[int, int]]:
        """What is at the paths of the interpreter: a program could rename folders above them."""
        try:
            return [(state.st_dev, state.st_ino) for state in map(os.stat, self.kept)]
        except OSError:
            return []

    def empty_folder(self, folder: str) -> None:
        """Remove everything but the interpreter, where that is in a folder for programs."""
        for entry in list(os.scandir(folder)):
            if entry.path in self.kept:
                continue
            if any(path.startswith(entry.path + "/") for path in self.kept):
                self.empty_folder(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


class Files:
    """What a run reads and writes, in memory; nothing blocks, whoever reads late or never."""

    def __init__(self, given: bytearray, sizes: list[int], *, wants_code: bool) -> None:
        """Store what is given: standard input, then files of these sizes, which are arguments."""
        start = 0
        inputs = []
        for size in (len(given) - sum(sizes), *sizes):
            inputs.append(os.memfd_create("input", os.MFD_CLOEXEC))
            write_all(inputs[-1], memoryview(given)[start : start + size])
            os.lseek(inputs[-1], 0, os.SEEK_SET)
            start += size
        self.stdin, *self.arguments = inputs
        self.out = os.memfd_create("stdout", os.MFD_CLOEXEC)
        self.err = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self.report = os.memfd_create("report", os.MFD_CLOEXEC)
        sealable = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.code = os.memfd_create("code", sealable) if wants_code else None

    def sealed_code(self) -> bytes | None:
        """The compiled program, where the run left one that the program could not change."""
        if self.code is None or fcntl.fcntl(self.code, fcntl.F_GET_SEALS) != ALL_SEALS:
            return None
        return contents(self.code, os.fstat(self.code).st_size)

    def close(self) -> None:
        for file in (self.stdin, *self.arguments, self.out, self.err, self.report, self.code):
            if file is not None:
                os.close(file)


def contents(file: int, most: int) -> bytes:
    size = min(os.fstat(file).st_size, most)
    parts, place = [], 0
    while place < size:
        part = os.pread(file, size - place, place)
        if not part:
            break
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def write_all(file: int, content: bytes | bytearray | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


# One run, seen from the child


class Run:
    """The forked process: it gives up what it must not have, then becomes the program."""

    def __init__(self, warden: Warden, order: dict[str, Any], files: Files) -> None:
        self.warden = warden
        self.order = order
        self.files = files
        self.out, self.err = sys.stdout, sys.stderr
        self.told_bytes = 0

    def go(self) -> NoReturn:
        self.take_files()
        self.take_limits()
        code = self.compiled()
        checks = self.order["checks"]
        report_bytes = self.order["report_bytes"] if checks else 0
        limit(resource.RLIMIT_FSIZE, max(self.order["output_bytes"], report_bytes) + 1)
        name = "program" if checks else "__main__"  # tested programs are imported
        module = types.ModuleType(name)
        module.__dict__.update(__builtins__=builtins, __file__="program.py")
        sys.modules[name] = module
        linecache.cache["program.py"] = (lambda: self.warden.source,)
        sys.argv = ["program.py", *(f"/proc/self/fd/{file}" for file in self.files.arguments)]
        status = self.run_program(code, module.__dict__)
        if checks:
            if not status:
                for check in checks:
                    self.tell_answer(check["nonce"], self.answer(check, module.__dict__))
            self.flush()
            os._exit(status)
        del module, code  # or the program's objects would not be destroyed
        self.end(status)

    def end(self, status: int) -> NoReturn:
        """End as Python does: join threads, call exit functions, destroy the program's objects.

        Destroying a file writes what is left in it; `__del__` may print.
        """
        try:
            # `_threading_atexits` has what `concurrent.futures` registers.
            if threading.active_count() > 1 or threading._threading_atexits:  # type: ignore[attr-defined]
                threading._shutdown()  # type: ignore[attr-defined]
        except BaseException as error:
            self.show(error)
        atexit._run_exitfuncs()
        if not self.flush_streams():
            status = LOST_OUTPUT
        if self.warden.prints_last:
            if gc.isenabled():
                gc.collect()  # as Python does; it puts files before the buffers below them
            sys.stdout, sys.stderr = self.out, self.err
            sys.modules.pop("__main__", None)
            gc.collect()
            libc.fflush(None)
        self.flush()
        os._exit(status)

    def take_files(self) -> None:
        files = self.files
        for number, file in enumerate((files.stdin, files.out, files.err)):
            os.dup2(file, number)
        given = (files.report, files.code, *files.arguments)
        kept = sorted(file for file in given if file is not None)
        for before, after in itertools.pairwise((2, *kept, 2 * MAX_DESCRIPTORS)):
            os.closerange(before + 1, after)

    def take_limits(self) -> None:
        order, warden = self.order, self.warden
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        limit(resource.RLIMIT_CPU, int(order["cpu_s"]) + 2)  # should the warden be late
        # Not the warden's, which must fork whatever another jail's program of the same user does.
        limit(resource.RLIMIT_NPROC, warden.processes)
        limit(resource.RLIMIT_AS, warden.base_bytes + order["memory_bytes"])
        take_filter(warden.filter)

    def compiled(self) -> types.CodeType:
        """The program's code. The first run compiles it, and seals it for the others."""
        if self.warden.code is not None:
            code: types.CodeType = marshal.loads(self.warden.code)
            return code
        try:
            code = compile(self.warden.source, "program.py", "exec", dont_inherit=True)
        except Exception as error:  # whatever the compiler makes of it
            self.tell({"failed": "compile"})
            self.show(error)
            os._exit(1)
        place = self.files.code
        if place is not None:
            write_all(place, marshal.dumps(code))
            fcntl.fcntl(place, fcntl.F_ADD_SEALS, ALL_SEALS)
            os.close(place)
        return code

    def run_program(self, code: types.CodeType, namespace: dict[str, Any]) -> int:
        """Run setup and program; return the exit status."""
        try:
            if self.order["setup"]:
                exec(compile(self.order["setup"], "setup.py", "exec"), namespace)
                for check in self.order["checks"]:
                    mark_as_given(namespace, check.get("call", ""))
            exec(code, namespace)
        except SystemExit as exit_:
            if self.order["checks"]:
                self.tell({"failed": "exit"})
                return 1
            if exit_.code is None or isinstance(exit_.code, int):
                number = exit_.code or 0
                return number & 255 if -MAX_PLAIN_INT <= number < MAX_PLAIN_INT else 255
            print(exit_.code, file=self.err)
            return 1
        except BaseException as error:
            self.tell({"failed": "memory" if isinstance(error, MemoryError) else "exception"})
            self.show(error)
            return 1
        return 0

    def answer(self, check: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        """Do one check; return the value that the program gave, or what came instead."""
        try:
            if "call" in check:
                value = find(namespace, check["call"])(*check["args"])
            elif "eval" in check:
                value = eval(compile(check["eval"], "test.py", "eval"), namespace)
            else:
                exec(compile(check["assert"], "test.py", "exec"), namespace)
                return {"held": True}
            return {"value": plain(value)}
        except BaseException as error:
            self.show(error)
            return {"raised": type(error).__name__}

    def flush(self) -> None:
        """Also what the program put in the place of the two."""
        self.flush_streams()
        sys.stdout, sys.stderr = self.out, self.err
        self.flush_streams()

    def flush_streams(self) -> bool:
        """Return whether nothing was lost."""
        is_written = True
        for name in ("stdout", "stderr"):
            stream = vars(sys).get(name)
            try:
                if stream is not None and not getattr(stream, "closed", False):
                    stream.flush()
            except BaseException:
                is_written = False
        return is_written

    def tell_answer(self, nonce: str, answer: dict[str, Any]) -> None:
        line = json.dumps({"nonce": nonce, **answer}).encode() + b"\n"
        if self.told_bytes + len(line) > self.order["report_bytes"] - REPORT_SPARE_BYTES:
            line = json.dumps({"nonce": nonce, "too_large": True}).encode() + b"\n"
        self.told_bytes += len(line)
        write_all(self.files.report, line)

    def tell(self, line: dict[str, Any]) -> None:
        write_all(self.files.report, json.dumps(line).encode() + b"\n")

    def show(self, error: BaseException) -> None:
        """Print a traceback that begins with the program's own first line."""
        with contextlib.suppress(BaseException):
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            if isinstance(error, PermissionError) and "multiprocessing" in sys.modules:
                # It fails before it makes a process, where it must make a lock or a socket.
                error.add_note(NO_PROCESSES)
            traceback.print_exception(error, file=self.err)


def limit_all_runs() -> None:
    """Set the limits that all runs share, and that do the warden no harm."""
    limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and writes on
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)  # which programs set for themselves
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def limit(kind: int, amount: int) -> None:
    """Set a limit for good; never above what was inherited."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        amount = min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


class Given(functools.partial[Any]):
    """A function of the setup's: the program may use it, but has not defined it."""


def mark_as_given(namespace: dict[str, Any], name: str) -> None:
    """Tell what the setup brought from what the program defines: `operator.add` is no answer."""
    if callable(namespace.get(name)):
        namespace[name] = Given(namespace[name])


def find(namespace: dict[str, Any], name: str) -> Any:
    """A method first: what else has its name may be the setup's."""
    solution = namespace.get("Solution")
    if hasattr(solution, name):
        return getattr(namespace["Solution"](), name)
    if not isinstance(namespace.get(name, Given(print)), Given):
        return namespace[name]
    raise NameError(f"the program defines no {name!r}")


def plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911, PLR0912 - one for each kind
    """A value of built-in types as JSON, kinds told apart; what is none, by its type's name.

    A subclass goes as what it is built on, by the base's own methods: its `__eq__` is not asked.
    """
    if depth > MAX_DEPTH:
        return {"other": "a value nested too deep"}
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
        value = value.item()
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        whole = int.__add__(value, 0)
        return whole if abs(whole) < MAX_PLAIN_INT else {"int": hex(whole)}
    if isinstance(value, float):
        number = float.__add__(value, 0.0)
        return number if number - number == 0 else {"float": repr(number)}
    if isinstance(value, complex):
        pair = complex.__add__(value, 0)
        return {"complex": [repr(pair.real), repr(pair.imag)]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, WRAPPERS):  # equal to what they wrap
        return plain(vars(value)["data"], depth + 1)
    if isinstance(value, collections.ChainMap):
        value = {key: item for each in reversed(value.maps) for key, item in each.items()}
    if isinstance(value, types.MappingProxyType):
        value = dict(value)
    if isinstance(value, fractions.Fraction):
        parts = fractions.Fraction.as_integer_ratio(value)
        return {"fraction": [hex(part) for part in parts]}
    if isinstance(value, decimal.Decimal):
        return {"decimal": decimal.Decimal.__str__(value)}
    if isinstance(value, VIEWS):  # equal to sets
        value = set(value)
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[plain(key, depth + 1), plain(item, depth + 1)] for key, item in pairs]}
    for base, name in BASES:
        if isinstance(value, base):
            items = [plain(item, depth + 1) for item in base.__iter__(value)]
            return items if base is list else {name: items}
    return {"other": kind.__name__}


WRAPPERS = (collections.UserDict, collections.UserList, collections.UserString)
#: The types of a dictionary's keys and items.
VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.items()))
#: What a sequence is told as, by what it is built on.
BASES: tuple[tuple[Any, str], ...] = (
    (list, ""),
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "set"),
)


if __name__ == "__main__":
    main()
