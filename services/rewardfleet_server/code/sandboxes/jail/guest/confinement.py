"""Confinement of the processes in a jail: seccomp, Landlock, and limits on resources."""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
#: The system call, its operation, and its flag.
SECCOMP = {"x86_64": 317}.get(os.uname().machine, 277)
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8

#: System calls and rights of Landlock, which the C library has no names for.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR, WRITE_FILE, EXECUTE = 1 << 2, 1 << 3, 1 << 1, 1 << 0
#: How many rights on files a kernel with this version of Landlock knows. From 5 on, it is 16.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}

#: The stack of the main thread may grow to this size. Linux leaves room for no more.
STACK_BYTES = 120 * 2**20
MAX_DESCRIPTORS = 256

#: It keeps the interpreter's lock: no other thread may run when this is used, and few have one.
libc: Any = ctypes.PyDLL(None, use_errno=True)
#: The same without `ctypes.get_errno`: each call of a new process changes fewer pages of memory.
fast_libc: Any = ctypes.PyDLL(None)
_KILL = int(signal.SIGKILL)  # the enumeration's member is in other pages

#: Confines this process: limits on seconds of CPU time, and on bytes of memory.
Confine = Callable[[float, int], None]


class Filter(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))

    def install(self, *, asks: bool = False) -> int:
        """Apply the filter to this process, for good; return its listener if it asks."""
        flags = SECCOMP_FILTER_FLAG_NEW_LISTENER if asks else 0
        call = (SECCOMP, SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(self))
        return checked(libc.syscall(*call), "seccomp")


class Confinement(NamedTuple):
    """What confines the processes of a run, in addition to what they inherit."""

    filter: Filter  #: their seccomp filter
    asks: bool  #: whether the supervisor answers which files they read
    processes: int  #: limit on the processes and threads of their user
    base_bytes: int  #: memory of the interpreter, which their limit does not count
    supervisor: int  #: the process id of their parent

    def apply(self, cpu_s: float, memory_bytes: int) -> None:
        end_with(self.supervisor)
        # If the supervisor is late. At a hard limit the kernel sends SIGKILL, which would look as
        # if it came from outside.
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 2, hard))
        # Not the supervisor's limit: it must fork whatever other jails of the same user do.
        limit(resource.RLIMIT_NPROC, self.processes)
        limit(resource.RLIMIT_AS, self.base_bytes + memory_bytes)
        fast_libc.prctl(PR_SET_DUMPABLE, int(self.asks))  # whether it can read their memory
        self.filter.install()


def end_with_parent() -> None:
    fast_libc.prctl(PR_SET_PDEATHSIG, _KILL)


def end_with(supervisor: int) -> None:
    """Let the kernel end this process together with its parent; end it if that has ended."""
    end_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)


def limit_all_runs() -> None:
    """Set the limits that all runs share, and that do not affect the supervisor."""
    limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    # Not 0, at which the kernel still gives a dump to a program of the host that collects them.
    limit(resource.RLIMIT_CORE, 1)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and continues to write
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)  # which programs set for themselves
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def limit(kind: int, amount: int) -> None:
    """Set a limit for good; never above what was inherited."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        amount = min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def mapped_bytes() -> int:
    """Return the size of all mappings of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def restrict_files(readable: list[str], writable: list[str], *, may_execute: bool = False) -> int:
    """Close all but these files, and TCP, to this process; return Landlock's version, or 0."""
    version = int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))
    if version < 1:
        return 0
    rights = (1 << FILE_RIGHTS.get(version, 16)) - 1
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
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        applicable = wanted if os.path.isdir(path) else wanted & (READ_FILE | WRITE_FILE)
        rule = struct.pack("=Qi", applicable, target)
        checked(libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0))
        os.close(target)
    checked(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return version


def checked(result: Any, name: str = "landlock") -> int:
    """Return the result of a system call, or raise OSError."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return int(result)
