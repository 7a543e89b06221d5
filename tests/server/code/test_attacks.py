"""Attacks on the jail, each over HTTP at both isolation levels.

A program that attempts what is forbidden prints `held` if it was refused: accepted means that the
jail held. After each attack, the next program must be unharmed, and no process may be left.
"""

import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rewardfleet_server.testing import wait_until

from ...measure import Stopwatch
from ..processes import descendants
from .conftest import (
    LIMITS,
    SHORT_LIMITS,
    Service,
    asserts,
    functional,
    programs,
    served_code,
    stdio,
)

pytestmark = pytest.mark.slow

HELD = stdio(("", "held"))


@pytest.fixture
def service(level_service: Service):
    """A service that must be unharmed after the test."""
    assert level_service.verdict("print(input())", stdio(("x", "x"))) == "accepted"
    yield level_service
    score = level_service.score(
        "import glob, os\nprint(input(), glob.glob('/tmp/*') + glob.glob('/dev/shm/*'))"
        if level_service.level == "bubblewrap"
        else "print(input(), [])",
        stdio(("y", "y []"), ("z", "z []")),
    )
    assert score["score"] == 1.0, score
    assert score["suspicions"] == []
    wait_until(lambda: not programs())


def test_the_process_of_a_program_is_found_while_it_runs(service: Service):
    found = threading.Event()

    def run_until_found() -> None:  # a program may end before this busy machine looks
        while not found.is_set():
            sleep = "import time; time.sleep(0.5)"
            assert service.score(sleep, stdio(("", "")))["score"] == 1.0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_until_found)
        try:
            wait_until(lambda: len(programs()) == 1)
        finally:
            found.set()
        running.result()


def program_trying(*attempts: str, setup: str = "") -> str:
    """Return a program that prints `held` if each of these expressions raises OSError."""
    listed = ", ".join(f"lambda: {attempt}" for attempt in attempts)
    return f"""
import ctypes, glob, mmap, os, resource, signal, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
{setup}
for number, attempt in enumerate([{listed}]):
    try:
        attempt()
    except OSError:
        continue
    print("escaped by attempt", number)
print("held")
"""


REFUSED = {
    "fork": program_trying(
        "os.fork()", "os.forkpty()", "call(57)", "call(58)", "call(56, 17, 0, 0, 0, 0)"
    ),
    "clone3": program_trying("call(435, (ctypes.c_uint64 * 11)(), 88)"),
    "subprocess": program_trying(
        "subprocess.run(['/bin/true'])", "os.posix_spawn('/bin/true', ['t'], {})"
    ),
    "exec": program_trying(
        "os.execv('/bin/true', ['true'])", "os.execv(sys.executable, ['python', '-V'])"
    ),
    "kill everybody": program_trying("os.kill(-1, 9)", "os.kill(-1, 15)", "os.killpg(0, 9)"),
    "signals to every pid": program_trying(
        *(f"os.kill({pid}, {number})" for pid in ("1", "2", "os.getppid()") for number in (0, 9)),
        "[os.kill(pid, 9) for pid in range(1, 400)]",
        "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        "call(222, 0, 0, ctypes.byref(ctypes.c_int()))",  # timer_create, which sends any signal
        "call(234, os.getppid(), os.getppid(), 9)",  # tgkill
        "call(129, os.getppid(), 9, (ctypes.c_char * 128)())",  # rt_sigqueueinfo
    ),
    "signals by fcntl": program_trying(
        "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
        "fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
        setup="import fcntl",
    ),
    "ptrace": program_trying(
        "call(101, 16, os.getppid(), 0, 0)",
        "call(101, 0, 0, 0, 0)",
        "call(310, os.getppid(), 0, 0, 0, 0, 0)",  # process_vm_readv
        "open(f'/proc/{os.getppid()}/mem', 'rb')",
    ),
    "read /etc/passwd": program_trying(
        "open('/etc/passwd')", "open('/etc/shadow')", "os.listdir('/root')"
    ),
    "read the host's environment": program_trying(
        "open('/proc/1/environ', 'rb').read()",
        "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
        setup="assert not set(os.environ) - {'LC_CTYPE'}, os.environ",
    ),
    "read /proc of others": program_trying(
        *(
            f"open(f'/proc/{{os.getppid()}}/{name}', 'rb').read()"
            for name in ("maps", "mem", "cmdline", "status")
        ),
        "os.listdir(f'/proc/{os.getppid()}/fd')",
        "os.listdir('/proc')",
    ),
    "limits of others": program_trying(
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "os.sched_setaffinity(os.getppid(), {0})",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    ),
    "network": program_trying(
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.create_connection(('127.0.0.1', 18081), 1)",
        "socket.create_connection(('1.1.1.1', 53), 1)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    ),
    "abstract sockets": program_trying(
        "call(41, 1, 1, 0)",  # socket
        "call(42, 0, b'\\x01\\x00\\x00name', 7)",  # connect
        "call(49, 0, b'\\x01\\x00\\x00name', 7)",  # bind
    ),
    "namespaces and mounts": program_trying(
        "call(272, 0x10000000)",  # unshare(CLONE_NEWUSER)
        "call(272, 0x20000)",
        "call(308, 0, 0)",  # setns
        "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)",  # mount
        "call(166, b'/tmp', 0)",
        "os.chroot('/tmp')",
        "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    ),
    "other users": program_trying(
        "os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.chown('/', 0, 0)"
    ),
    "leave something in the kernel": program_trying(
        "call(29, 77, 4096, 0o1666)",  # shmget
        "call(64, 77, 1, 0o1666)",  # semget
        "call(68, 77, 0o1666)",  # msgget
        "call(240, b'queue', 0o102, 0o666, 0)",  # mq_open
        "call(248, b'user', b'name', b'x', 1, -3)",  # add_key
        "call(425, 8, 0)",  # io_uring_setup
        "call(321, 0, 0, 0)",  # bpf
        "os.memfd_create('more')",
    ),
    # What would make the kernel send SIGKILL, which counts as sent from outside.
    "a limit on CPU time of its own": program_trying(
        "resource.prlimit(0, resource.RLIMIT_CPU, (1, 1))",
        "call(160, ctypes.c_long(1 << 32), second)",  # setrlimit, which reads 32 bits
        "call(302, 0, ctypes.c_long(1 << 32), second, 0)",  # prlimit64
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN) or call(302, 0, 0, second, 0)",
        setup="second = (ctypes.c_uint64 * 2)(1, 1)",
    ),
    "other ways to be killed": program_trying(
        "call(157, 22, 1, 0, 0, 0)",  # prctl: strict seccomp
        "call(317, 0, 0, 0)",  # seccomp
        "call(157, 1, 9)",  # prctl: a signal when its parent ends
        "call(244, 0, 0)",  # mq_notify
        "call(72, 0, 15, (ctypes.c_int * 2)(0, 1))",  # fcntl: F_SETOWN_EX
        "call(72, 0, 1024, 0)",  # fcntl: F_SETLEASE
        "call(16, 0, 0x8901, ctypes.byref(ctypes.c_int(1)))",  # ioctl: FIOSETOWN
        "call(16, 0, 0x5452, ctypes.byref(ctypes.c_int(1)))",  # ioctl: FIOASYNC
        "call(144, 0, 1, ctypes.byref(ctypes.c_int(1)))",  # sched_setscheduler: real time
        "call(28, ctypes.addressof(page), 4096, 100)",  # madvise: a broken page
        "call(448, 0, 0)",  # process_mrelease
        "call(200, os.getpid(), 9)",  # tkill
        "call(297, os.getpid(), os.getpid(), 9, (ctypes.c_char * 128)())",  # rt_tgsigqueueinfo
        "open('/proc/self/oom_score_adj', 'w')",
        setup="page = ctypes.c_char.from_buffer(mmap.mmap(-1, 4096))",
    ),
    "daemon": program_trying("os.setsid()", "os.fork()"),
    "write elsewhere": program_trying(
        *(f"open({path!r}, 'w')" for path in ("/usr/x", "/x", "/dev/x", "/etc/x", "/proc/x")),
        "os.mkdir('/usr/lib/x')",
        "os.symlink('/etc', '/dev/link')",
    ),
    "raise its limits": program_trying(
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
        # Python raises ValueError for a limit above the hard limit.
        setup="""
def raising(kind, limits, old=resource.setrlimit):
    try:
        old(kind, limits)
    except ValueError as error:
        raise OSError from error
resource.setrlimit = raising""",
    ),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_forbidden_actions_are_refused(service: Service, program: str):
    score = service.score(program, HELD)
    assert score["score"] == 1.0, score["verdicts"]
    assert score["isolation"] == service.level


def test_files_of_the_same_user_on_the_host_are_out_of_reach(service: Service):
    """Landlock covers neither modes nor times of files, and its first versions no truncation."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="rewardfleet-test-") as file:
        file.write(b"untouched")
        file.flush()
        os.chmod(file.name, 0o644)
        if os.geteuid() == 0:
            os.chown(file.name, 65534, 65534)
        before = os.stat(file.name)
        attempts = (
            "os.truncate(name, 0)",
            "os.open(name, os.O_RDONLY | os.O_TRUNC)",
            "os.open(name, os.O_RDONLY)",
            "open(name, 'w')",
            "open(name, 'r+')",
            "os.unlink(name)",
            "os.rename(name, name + 'x')",
            "os.link(name, name + 'x')",
            "os.setxattr(name, 'user.x', b'x')",
        )
        setup = f"""
name = {file.name!r}
os.chmod(name, 0o777)  # calls that have no effect
os.utime(name, (1, 1))
"""
        assert service.score(program_trying(*attempts, setup=setup), HELD)["score"] == 1.0
        after = os.stat(file.name)
        assert (after.st_mode, after.st_mtime, after.st_size) == (
            before.st_mode,
            before.st_mtime,
            len(b"untouched"),
        )


@pytest.mark.parametrize("name", ["read /etc/passwd", "read /proc of others", "network"])
def test_without_a_jail_the_same_program_escapes(name: str):
    """Show that the tests above can fail."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSED[name]], capture_output=True, text=True, check=True
    )
    assert "escaped" in done.stdout


def native(code: str) -> str:
    """Return a program that runs machine code."""
    return f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex({code!r}))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""


ENDED = {
    "fork bomb": ("import os\nwhile True: os.fork()", {"runtime_error"}),
    "thread bomb": (
        (
            "import threading, time\nthreading.stack_size(32768)\n"
            "while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
        ),
        {"runtime_error"},
    ),
    "4 GB at once": ("x = bytearray(4 << 30)", {"memory_limit"}),
    "4 GB slowly": ("x = []\nwhile True: x.append(bytearray(1 << 20))", {"memory_limit"}),
    "4 GB shared": ("import mmap\nx = mmap.mmap(-1, 4 << 30)", {"memory_limit", "runtime_error"}),
    "4 GB, caught and tried again": (
        "x = []\nwhile True:\n  try: x.append(bytearray(1 << 20))\n  except MemoryError: pass",
        {"time_limit"},
    ),
    "endless stdout": ("while True: print('x' * 1000)", {"output_limit"}),
    "endless stderr": (
        "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
        {"output_limit"},
    ),
    "endless stdout that ignores the limit": (
        (
            "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "while True:\n  try: os.write(1, b'x' * 1000)\n  except OSError: pass"
        ),
        {"time_limit", "output_limit"},
    ),
    "endless loop": ("while True: pass", {"time_limit"}),
    "endless loop in threads": (
        (
            # Jails of other tests may have all threads that the user of the jails may have.
            "import threading\ndef loop():\n  while True: pass\n"
            "for _ in range(8):\n  try: threading.Thread(target=loop).start()\n"
            "  except RuntimeError: break\n"
            "loop()"
        ),
        {"time_limit"},
    ),
    "endless loop in C": ("x = 10 ** 10 ** 9", {"time_limit", "memory_limit"}),
    "sleep": ("import time\ntime.sleep(1000)", {"time_limit"}),
    "ignored signals": (
        (
            "import signal\nfor n in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(n, 1)\n"
            "while True: pass"
        ),
        {"time_limit"},
    ),
    "blocked signals": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        {"time_limit"},
    ),
    "SIGKILL of itself": ("import os\nos.kill(os.getpid(), 9)", {"runtime_error"}),
    "SIGKILL of a thread": (
        "import os, signal, threading\nsignal.pthread_kill(threading.get_ident(), 9)",
        {"runtime_error"},
    ),
    "SIGKILL as its exit status": ("import os\nos._exit(137)", {"runtime_error"}),
    # kill, sigreturn, and push: without a stack, no signal can be handled.
    "a system call of 32 bits": (native("b8 25 00 00 00 cd 80"), {"runtime_error"}),
    "a frame of a signal that is none": (native("31 e4 b8 0f 00 00 00 0f 05"), {"runtime_error"}),
    "no stack": (native("31 e4 50"), {"runtime_error"}),
    "no memory": (
        "import ctypes\nctypes.CDLL(None).munmap(None, ctypes.c_size_t(0x7fff_ffff_f000))",
        {"runtime_error"},
    ),
    "abort": ("import os\nos.abort()", {"runtime_error"}),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", {"runtime_error"}),
    "deep recursion": ("def f(): f()\nf()", {"runtime_error"}),
    "deeper recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        {"runtime_error", "memory_limit", "time_limit"},
    ),
    "deep recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        {"runtime_error", "memory_limit", "time_limit"},
    ),
    "deep source": ("(" * 5000 + ")" * 5000, {"compile_error"}),
    "deeper source": ("x = " + "-" * 200_000 + "1", {"compile_error"}),
    "exit by exception": ("raise KeyboardInterrupt", {"runtime_error"}),
    "many files": (
        (
            "import os\nos.chdir('/tmp')\nn = 0\n"
            "while True:\n  os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))\n  n += 1"
        ),
        {"output_limit", "time_limit", "runtime_error"},
    ),
    "deep folders": (
        (
            "import os\nos.chdir('/tmp')\n"
            "for _ in range(5000): os.mkdir('d'); os.chdir('d')\nraise SystemExit(1)"
        ),
        {"runtime_error", "time_limit"},
    ),
    "a folder that cannot be read": (
        "import os\nos.umask(0o777)\nos.mkdir('/tmp/a')\nos.open('/tmp/b', os.O_CREAT)\n1/0",
        {"runtime_error"},
    ),
}


@pytest.mark.parametrize(("program", "verdicts"), ENDED.values(), ids=ENDED)
def test_programs_that_exceed_limits_are_ended(service: Service, program: str, verdicts: set[str]):
    watch = Stopwatch()
    # A program that must exceed another limit than time gets enough time.
    limits = SHORT_LIMITS if "time_limit" in verdicts else LIMITS
    score = service.score(program, stdio(("", "x")), limits=limits)
    assert score["verdicts"][0]["verdict"] in verdicts, score
    assert score["score"] == 0.0
    assert watch.seconds < 25


def test_threads_of_one_program_do_not_make_another_fail(service: Service):
    """If jails share a user, the kernel counts the threads of all of them together."""
    bomb = """
import threading, time
threading.stack_size(32768)
try:
    while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError:
    time.sleep(9)
"""
    limits = {**LIMITS, "wall_s": 2}
    honest = "import time\ntime.sleep(0.05)\nprint(input())"
    with ThreadPoolExecutor(1) as threads:
        bombing = threads.submit(service.verdict, bomb, stdio(("", "x")), limits=limits)
        seen = set()
        while not seen or not bombing.done():
            response = service.post(honest, stdio(("x", "x"), ("x", "x")))
            seen.add((response.status_code, response.json()["score"]))
        assert bombing.result() == "time_limit"
    assert seen == {(200, 1.0)}


def test_jails_are_killed_first_if_memory_runs_out(service: Service):
    scores = []
    for pid in descendants():
        with suppress(OSError):  # it has ended
            scores.append(Path(f"/proc/{pid}/oom_score_adj").read_text())
    assert scores.count("1000\n") >= 2  # other test modules may run jails as well


def test_input_does_not_count_as_memory_of_the_program(service: Service):
    tests = stdio(("7" * (24 << 20), str(24 << 20)))
    program = "import os\nprint(sum(iter(lambda: len(os.read(0, 65536)), 0)))"
    limits = {**LIMITS, "memory_mb": 16}
    assert service.verdict(program, tests, limits=limits) == "accepted"
    program = "print(len(bytearray(12 << 20)))"
    assert service.verdict(program, stdio(("7" * (24 << 20), str(12 << 20))), limits=limits) == (
        "accepted"
    )


def test_files_are_removed_before_the_next_test(service: Service):
    """Also between tests of the same submission."""
    program = """
import glob, os
folders = ["/tmp", "/dev/shm", "/var/tmp", "."]
print(sorted(sum((glob.glob(folder + "/*left*") for folder in folders), [])))
for folder in folders:
    try:
        with open(folder + "/left", "w") as file:
            file.write(input() if folder == "/tmp" else "x")
        os.makedirs(folder + "/left-too/deep")
        os.symlink("/usr", folder + "/left-link")
    except OSError:
        pass
"""
    score = service.score(program, stdio(("1", "[]"), ("2", "[]"), ("3", "[]")))
    assert score["score"] == 1.0, score


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_the_size_of_a_folder_is_limited(service: Service, folder: str):
    """Many files, each below the limit of a file."""
    program = f"""
import contextlib
import os
written = 0
try:
    for number in range(1000):
        with open(f"{folder}/{{number}}", "wb") as file:
            written += file.write(bytes(1 << 20))
except OSError:
    pass
print(written <= 64 << 20)
"""
    assert service.verdict(program, stdio(("", "True"))) == "accepted"


def test_state_does_not_leak_into_the_next_test(service: Service):
    program = """
import builtins, os, sys, math
print(getattr(builtins, "left", "none"), math.pi == 3, os.environ.get("LEFT"))
builtins.left, math.pi, os.environ["LEFT"] = "something", 3, "x"
"""
    score = service.score(program, stdio(("", "none False None"), ("", "none False None")))
    assert score["score"] == 1.0


# Programs that try to pass without solving the task


FORGERIES = {
    "os._exit at import": "import os\nos._exit(0)",
    "sys.exit at import": "import sys\nsys.exit(0)",
    "sys.exit in the call": "import sys\ndef f(*a): sys.exit(0)",
    "os._exit in the call": "import os\ndef f(*a): os._exit(0)",
    "os._exit from atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(*a): return 1",
    "exit in a thread": (
        "import os, threading\nthreading.Timer(0.0, os._exit, (0,)).start()\n"
        "def f(*a):\n  while True: pass"
    ),
    "always equal": (
        "class Any:\n  def __eq__(self, other): return True\n"
        "  def __ne__(self, other): return False\n  __hash__ = None\ndef f(*a): return Any()"
    ),
    "an int that is always equal": (
        "class Any(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\n"
        "def f(*a): return Any(1)"
    ),
    "a list of what is always equal": (
        "class Any(list):\n  def __eq__(self, other): return True\n  def __len__(self): return 2\n"
        "def f(*a): return Any()"
    ),
    "a frame walk": """
import sys
def f(*args):
    frame, found = sys._getframe(), []
    while frame:
        found += [repr(value) for value in frame.f_locals.values()]
        found += [repr(value) for value in frame.f_globals.values()]
        frame = frame.f_back
    for text in found:
        if "73856093" in text:
            return 73856093 - 0
    return 0
""",
    "a garbage-collector hunt": """
import gc, sys
def f(*args):
    gc.collect()
    for thing in gc.get_objects():
        try:
            if isinstance(thing, (dict, list, tuple)) and len(thing) < 10000:
                values = thing.values() if isinstance(thing, dict) else thing
                for value in list(values):
                    if type(value) is int and value == int("7385" + "6093"):
                        return value
                    if type(value) is str and "7385" + "6093" in value and len(value) < 100:
                        return int("7385" + "6093")
        except Exception:
            pass
    return 0
""",
    "patched builtins": (
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 1\n"
        "builtins.compile = builtins.eval = builtins.exec = lambda *a, **k: 73856093\n"
        "builtins.AssertionError = ZeroDivisionError\ndef f(*a): return 0"
    ),
    "patched excepthook": (
        "import sys\nsys.excepthook = lambda *a: None\nsys.unraisablehook = lambda *a: None\n"
        "def f(*a): raise ValueError"
    ),
    "patched stdout": (
        "import sys, io\nsys.stdout = sys.__stdout__ = io.StringIO()\nsys.stdin = None\n"
        "def f(*a): return 0"
    ),
    "patched json": (
        "import json\njson.dumps = lambda *a, **k: '{\"held\": true}'\n"
        "json.JSONEncoder.encode = json.dumps\ndef f(*a): return 0"
    ),
    "closed descriptors": "import os\nos.closerange(0, 10000)\ndef f(*a): return 0",
    "written descriptors": """
import contextlib
import os
for number in range(3, 1000):
    for text in (b'{"held": true}\\n', b'{"nonce": "", "held": true}\\n', b"ok\\n", b"\\0" * 100):
        try:
            os.write(number, text)
        except OSError:
            break
def f(*a): return 0
""",
    "a forged answer from outside the call": """
import contextlib
import os
def f(*a):
    for number in range(3, 1000):
        for value in ("73856", "true", "null"):
            try:
                os.write(number, b'{"nonce": "%s", "value": %s, "held": true}\\n'
                         % (b"0" * 32, value.encode()))
            except OSError:
                break
    os._exit(0)
""",
}

HUGE = {
    "a report of empty lines": "import os\nwhile True: os.write(number, b'\\n' * 65536)",
    "a report of lists": "import os\nos.write(number, b'[' + b'[],' * 500_000 + b'[]]\\n')",
    "many words": "import sys\nsys.stdout.write('x ' * 1_000_000)",
}


@pytest.mark.parametrize("program", HUGE.values(), ids=HUGE)
def test_large_reports_take_the_service_little_time(service: Service, program: str):
    find = (
        "import os\nfor number in range(3, 256):\n"
        "  try: os.write(number, b'')\n  except OSError: continue\n  break\n"
    )
    limits = {**SHORT_LIMITS, "output_kb": 60_000}
    watch = Stopwatch()
    score = service.score(find + program, stdio(("", "x")), limits=limits)
    assert score["score"] == 0.0
    assert watch.seconds < 25


#: The expected value, which no program above contains.
SECRET = "73856093"


@pytest.mark.protocol
@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("kind", ["functional", "compared assert", "assert in the jail", "stdio"])
def test_forgeries_do_not_pass(service: Service, program: str, kind: str):
    tests = {
        "functional": functional("f", ([2, 3], int(SECRET))),
        "compared assert": asserts(f"assert f(2, 3) == {SECRET}"),
        "assert in the jail": asserts(
            "assert abs(f(2, 3) - int(str(MANY))) < 1", setup="MANY = 7385"
        ),
        "stdio": stdio(("", SECRET)),
    }[kind]
    score = service.score(program, tests, limits=SHORT_LIMITS)
    assert score["score"] == 0.0, score
    assert score["verdicts"][0]["verdict"] != "skipped"


def test_an_early_exit_is_reported_as_suspicious(service: Service):
    score = service.score(FORGERIES["os._exit at import"], asserts("assert f(1) == 2"))
    assert score["verdicts"][0]["verdict"] == "exited_early"
    assert score["suspicions"] == ["test 1: exited, as if successful, before it had answered"]


def test_forged_lines_are_reported_as_suspicious(service: Service):
    score = service.score(FORGERIES["written descriptors"], functional("f", ([1], 5)))
    assert "test 1: wrote to the report, where only the supervisor writes" in score["suspicions"]


def test_verdicts_report_where_an_assert_was_evaluated(service: Service):
    tests = asserts("assert f(2) == 4", "assert abs(f(2) - 4) < 1", "assert f(3) in range(5, 7)")
    score = service.score("def f(x): return 2 * x", tests)
    assert [each["verdict_by"] for each in score["verdicts"]] == ["service"] * 3
    assert score["score"] == 1.0
    tests = asserts("class F(Four): pass\nassert F() == 4")
    score = service.score("class Four:\n  __eq__ = lambda *_: True", tests)
    assert [each["verdict_by"] for each in score["verdicts"]] == ["jail"]
    assert score["suspicions"] == ["test 1: decided by the program's process"]


# Correct programs that other sandboxes fail


def test_a_line_of_a_megabyte(service: Service):
    line = "x" * 2**20
    assert service.verdict(f"print('x' * {2**20})", stdio(("", line))) == "accepted"


def test_ten_megabytes_of_input(service: Service):
    text = "7" * 79 + "\n"
    tests = stdio((text * 131_072, str(131_072 * 79 * 7)))
    program = "import sys\nprint(sum(line.count('7') * 7 for line in sys.stdin))"
    assert service.verdict(program, tests) == "accepted"


def test_input_that_is_never_read(service: Service):
    tests = stdio(("x" * 2**20, "done"))
    assert service.verdict("print('done')", tests) == "accepted"


#: The order of a set with PYTHONHASHSEED=0, as in the jails.
SET_ORDER = subprocess.run(
    [sys.executable, "-c", "print(''.join({'a', 'b', 'c', 'd', 'e'}))"],
    env={"PYTHONHASHSEED": "0"},
    capture_output=True,
    text=True,
    check=True,
).stdout

HONEST = {
    "a thread with a large stack": (
        (
            "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(128 << 20)\n"
            "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
            "threading.Thread(target=lambda: print(depth(50000))).start()"
        ),
        "50000",
    ),
    "a pool of threads": (
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "print(sum(ThreadPoolExecutor(4).map(int, '123')))"
        ),
        "6",
    ),
    "asyncio": ("import asyncio\nasync def m(): print(5)\nasyncio.run(m())", "5"),
    "/dev/stdin": ("print(open('/dev/stdin').read())", "in"),
    "descriptor 0": ("print(open(0).read())", "in"),
    "exit": ("print('in')\nexit()", "in"),
    "exit of os": ("import os\nos.write(1, b'in')\nos._exit(0)", "in"),
    "atexit": ("import atexit\natexit.register(print, 'in')", "in"),
    "main": ("if __name__ == '__main__': print(input())", "in"),
    "dataclass": (
        (
            "from dataclasses import dataclass\n@dataclass(order=True)\n"
            "class A:\n  x: 'int'\nprint(A(1))"
        ),
        "A(x=1)",
    ),
    "its own stack limit": (
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 26, 1 << 26))\nprint(1)",
        "1",
    ),
    "sets in the same order": ("print(''.join({'a', 'b', 'c', 'd', 'e'}))", SET_ORDER),
    "random in the same order": ("import random\nprint(random.random())", "0.8444218515250481"),
}


@pytest.mark.protocol
@pytest.mark.parametrize(("program", "printed"), HONEST.values(), ids=HONEST)
def test_honest_programs_pass(service: Service, program: str, printed: str):
    score = service.score(program, stdio(("in", printed)))
    assert score["score"] == 1.0, score


@pytest.mark.parametrize("count", [8, 32, 64])
def test_threads_that_allocate(service: Service, count: int):
    """They share the default limit of memory with their stacks, not with arenas of malloc."""
    program = f"""
from concurrent.futures import ThreadPoolExecutor
import threading
together = threading.Barrier({count})
def work(n):
    together.wait(25)
    held = [bytes(100) for _ in range(10000)] + [bytearray(1 << 20) for _ in range(4)]
    together.wait(25)
    return len(held)
with ThreadPoolExecutor({count}) as pool:
    print(sum(pool.map(work, range({count}))))
"""
    limits = {**LIMITS, "memory_mb": 1024}
    score = service.score(program, stdio(("", f"{count * 10004}")), limits=limits)
    assert score["score"] == 1.0, score


#: Programs that start processes, of which each is refused.
PROCESSES = {
    "os.fork": "os.fork()",
    "os.forkpty": "os.forkpty()",
    "os.posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "os.posix_spawnp": "os.posix_spawnp('true', ['true'], {})",
    "os.spawnv": "os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
    "os.execv": "os.execv('/bin/true', ['true'])",
    "os.execlp": "os.execlp('true', 'true')",
    "os.system": "sys.exit(os.system('true'))",
    "os.popen": "print(os.popen('echo x').read())",
    "subprocess.run": "import subprocess\nsubprocess.run(['true'])",
    "subprocess.run in a shell": "import subprocess\nsubprocess.run('true', shell=True)",
    "subprocess.check_output": "from subprocess import *\ncheck_output(['echo'])",
    "subprocess.Popen without vfork": (
        "import subprocess\nsubprocess._USE_VFORK = False\n"
        "subprocess.Popen(['true'], preexec_fn=print)"
    ),
    "asyncio": "import asyncio\nasyncio.run(asyncio.create_subprocess_shell('true'))",
    "multiprocessing.Process": "import multiprocessing as m\nm.Process(target=print).start()",
    "multiprocessing.Process by spawn": (
        "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()"
    ),
    "multiprocessing.Process by forkserver": (
        "import multiprocessing as m\nm.get_context('forkserver').Process(target=print).start()"
    ),
    "multiprocessing.Pool": "import multiprocessing as m\nwith m.Pool(2) as p: p.map(abs, [1])",
    "multiprocessing.Manager": "import multiprocessing as m\nm.Manager().list()",
    "ProcessPoolExecutor": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(2) as p: print(list(p.map(abs, [1])))"
    ),
}


@pytest.mark.parametrize("program", PROCESSES.values(), ids=PROCESSES)
def test_a_refused_process_is_explained(service: Service, program: str):
    score = service.score(f"import os, sys\n{program}", stdio(("", "")))
    (verdict,) = score["verdicts"]
    assert verdict["verdict"] == "runtime_error"
    assert "the jail does not allow new processes" in verdict["stderr"], verdict
    assert verdict["wall_ms"] < 10_000


def test_a_program_that_only_clears_the_screen_passes(service: Service):
    program = "import os\nos.system('clear')\nprint(input())"
    assert service.verdict(program, stdio(("x", "x"))) == "accepted"


LARGE_ANSWERS = {
    "a text": "'x' * (5 << 20)",
    "a list of numbers": "list(range(10**6))",
    "a dictionary": "{str(n): n for n in range(4 * 10**5)}",
    "nested lists": "[[n] for n in range(6 * 10**5)]",
    "bytes": "bytes(3 << 20)",
    "a text of which no byte is ASCII": "'\u00e9' * (1 << 20)",
}


@pytest.mark.protocol
@pytest.mark.parametrize("large", LARGE_ANSWERS.values(), ids=LARGE_ANSWERS)
def test_an_answer_that_is_too_large_has_a_verdict_of_its_own(service: Service, large: str):
    """It is not suspicious, and the other answers of the same run count."""
    program = f"def f(): return {large}\ndef g(): return 1"
    cases = ["assert g() == 1", "assert f() == 0", "assert g() == 1", "assert g() == 2"]
    limits = {**LIMITS, "memory_mb": 1024, "output_kb": 16384}
    score = service.score(program, asserts(*cases, single_run=True), limits=limits)
    verdicts = [each["verdict"] for each in score["verdicts"]]
    assert verdicts == ["accepted", "answer_too_large", "accepted", "wrong_answer"]
    assert score["suspicions"] == []
    limits["output_kb"] = 64
    score = service.score(program, functional("f", ([], 0)), limits=limits)
    assert score["verdicts"][0]["verdict"] == "answer_too_large"
    assert score["suspicions"] == []


def test_an_answer_of_three_megabytes(service: Service):
    """Whatever the limit of output is."""
    tests = functional("f", ([], "x" * (3 << 20)))
    limits = {**LIMITS, "output_kb": 64}
    assert service.verdict("def f(): return 'x' * (3 << 20)", tests, limits=limits) == "accepted"


def test_pipes_of_one_program_do_not_make_those_of_another_small(service: Service):
    """The kernel limits the pipes of a user, which all jails share."""
    hoard = """
import fcntl, os, time
pipes = []
for size in (1 << 20, 1 << 18, 1 << 16):
    try:
        while True:
            pipes.append(os.pipe())
            fcntl.fcntl(pipes[-1][0], 1031, size)
    except OSError:
        pass
time.sleep(9)
"""
    program = "import os, time\ntime.sleep(0.05)\n"
    program += "_, pipe = os.pipe()\nos.set_blocking(pipe, False)\n"
    program += "print({} and os.write(pipe, bytes(70000)))"
    limits = {**LIMITS, "wall_s": 1.5}
    seen = set()
    with ThreadPoolExecutor(4) as threads:
        hoards = [
            threads.submit(service.verdict, f"x = {n}\n{hoard}", stdio(("", "")), limits=limits)
            for n in range(4)
        ]
        number = 1
        while not seen or not all(each.done() for each in hoards):
            seen.add(service.verdict(program.format(number), stdio(("", "65536"))))
            number += 1
        assert {each.result() for each in hoards} == {"time_limit"}
    assert seen == {"accepted"}


@pytest.mark.serial
@pytest.mark.slow
def test_the_service_is_as_fast_after_attacks_as_before(level_service: Service):
    """As one that was never attacked, in turns: how fast the machine is changes."""

    def seconds(service: Service) -> float:
        watch = Stopwatch()
        for _ in range(10):
            tests = stdio(*(("1", "1"),) * 10)
            assert service.score("print(input())", tests)["score"] == 1.0
        return watch.seconds

    for name in ("endless stdout", "4 GB at once", "thread bomb", "many files", "deep folders"):
        level_service.score(ENDED[name][0], stdio(("", "x")), limits=SHORT_LIMITS)
    with served_code(level_service.level) as unharmed:
        seconds(unharmed)
        # A factor of two and many attempts, because of other work on the machine.
        assert any(seconds(level_service) < 2 * seconds(unharmed) for _ in range(20))
