"""The processes in which answers are checked, as they are inside.

A server process imports the libraries once, never sees an answer, and is forked for each worker,
which confines itself before its first check. Workers are children of the service.
"""

import ctypes
import errno
import importlib
import json
import logging
import os
import pkgutil
import re
import resource
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from rewardfleet_server.system.child_process import end_with_parent

from .checkers.checks import check

_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_NOBODY = 65534
#: The system calls of a worker.
_ALLOWED = """
read write readv writev recvfrom sendto recvmsg sendmsg close lseek poll ppoll select pselect6
mmap munmap mremap mprotect madvise brk futex rseq sched_yield getrandom membarrier
rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack setitimer getitimer restart_syscall
clock_gettime clock_getres gettimeofday time times getrusage getpid gettid
exit exit_group
"""
#: Modules of sympy that no check uses.
_UNUSED = """
.tests .testing .benchmarks .plotting .interactive galgebra .parsing.autolev .physics .stats
.utilities.runtests .utilities._compilation .codegen .conftest .parsing.latex .diffgeom
.parsing.fortran .parsing.c .tensor .categories .liealgebras .holonomic .crypto .vector
"""
#: Formulas of today's models. Their parsers learn from them, and libraries import what they need.
_FORMULAS = r"""
\frac{1}{2} ; \dfrac{3}{4} ; -\frac{5}{6} ; 0.75 ; 12.5\% ; \sqrt{2} ; 2\sqrt{3}
\frac{\sqrt{3}}{2} ; \sqrt[3]{7} ; x^2 - 1 ; (x-1)(x+1) ; 3x^{2}+2x-5 ; \frac{x+1}{x-1}
\frac{a}{b}+\frac{c}{d} ; 2^{10} ; e^{2x} ; \ln(3) ; \log_2 8 ; \log x ; \sin x ; \cos^2 \theta
\tan(\frac{\pi}{4}) ; \frac{\pi}{6} ; 2\pi r ; 90^\circ ; \{1, 2, 3\} ; \{-1, 4\} ; (1, 2)
(3, -4, 5) ; [0, 1) ; (-\infty, 3] ; (2, \infty) ; (-\infty, -1) \cup (1, \infty) ; x = 5
y = 2x + 3 ; x > 3 ; -1 \le x < 4 ; x = 2, y = 3 ; 3 \pm \sqrt{5} ; x^2 + y^2 = 25
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ; 5! ; \binom{5}{2} ; 3 + 4i ; |x - 2|
\lfloor 3.7 \rfloor ; 1.2 \times 10^{5} ; \frac{n(n+1)}{2} ; \sum_{k=1}^{n} k ; \int_0^1 x \, dx
\lim_{x \to 0} \frac{\sin x}{x} ; a^{n-1} ; x_1 + x_2 ; \frac{1}{\sqrt{x}} ; 1,234 ; \text{(A)}
7\text{ cm} ; \left(\frac{1}{2}, \frac{3}{2}\right) ; 2x+3y=6 ; e^{i\pi} ; \frac{x^2}{4}+C
"""
_OTHERS: tuple[dict[str, Any], ...] = (
    {"form": "number", "answers": ["36 km/h"], "reference": "10 m/s", "units": "m/s",
     "quantities": [["36", "km/h"], ["10", "m/s"]]},
    {"form": "json", "answers": ["[1]"], "json_schema": {"type": "array"}},
)  # fmt: skip


def main() -> None:
    """Be the server process, given modules' path, channel, parent, and the memory of a worker."""
    channel, parent, memory = map(int, sys.argv[2:5])
    end_with_parent(parent, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the service ends it
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable()
    _import_all()
    formulas = re.split(r" ; |\n", _FORMULAS.strip())
    pairs = zip(formulas, [*formulas[1:], formulas[0]], strict=True)
    for answer, reference in [*pairs, *((each, each) for each in formulas)]:
        check({"form": "expression", "answers": [answer], "reference": reference})
    for job in _OTHERS:
        check(job)
    system_calls = _only_computing()
    with socket.socket(fileno=channel) as orders:
        orders.send(b"ready")
        while True:
            message, descriptors, *_ = socket.recv_fds(orders, 1, 1)
            if not message:
                return  # the service has ended
            orders.send(b"%d" % _fork(descriptors[0], orders, system_calls, memory))
            os.close(descriptors[0])


def _import_all() -> None:
    """Import what workers may need: they cannot open files."""
    import sympy  # noqa: PLC0415 - in the server process only

    for module in pkgutil.walk_packages(sympy.__path__, "sympy.", onerror=lambda _: None):
        if not any(part in module.name for part in _UNUSED.split()):
            importlib.import_module(module.name)


def _fork(channel: int, orders: socket.socket, system_calls: Any, memory: int) -> int:
    """Return the id of a new worker, whose parent is the service."""
    clone = ctypes.PyDLL(None).syscall
    pid: int = clone(_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if not pid:
        status = 1
        try:
            orders.close()
            connection = socket.socket(fileno=channel)
            with connection.makefile("rb") as lines:
                confine(system_calls, memory)
                for line in lines:
                    _send(connection, _checked(json.loads(line), connection))
            status = 0
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _checked(job: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
    """Check an answer. SIGPROF limits its CPU time: by default, it ends the process."""
    signal.setitimer(signal.ITIMER_PROF, job["cpu_s"])
    try:
        return check(job, lambda checkers: _send(connection, {"interim": checkers}))
    except (MemoryError, RecursionError):
        return {"outcome": "too_complex"}
    except Exception as error:  # noqa: BLE001 - of a checker, which the service reports
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _send(connection: socket.socket, reply: dict[str, Any]) -> None:
    connection.sendall(json.dumps(reply).encode() + b"\n")


def _only_computing() -> Any:
    import pyseccomp as seccomp  # type: ignore[import-untyped] # noqa: PLC0415 - needs libseccomp

    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    arch = seccomp.system_arch()
    for name in _ALLOWED.split():
        if seccomp.resolve_syscall(arch, name) >= 0:
            rules.add_rule(seccomp.ALLOW, name)
    return rules


def confine(system_calls: Any, memory: int) -> None:
    """Give up all rights of this process but to compute, and to use its channel and more memory."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    for kind, wanted in (
        (resource.RLIMIT_AS, used * resource.getpagesize() + memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        amount = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(kind, (amount, amount))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    system_calls.load()
