"""The end of a program: what it prints and its exit status are those of CPython."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardfleet.wire.score import Timing
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, RunResult
from rewardfleet_server.code.sandboxes.jail.isolation import find_python
from rewardfleet_server.code.sandboxes.jail.pool import JailPool, build
from rewardfleet_server.code.settings import CodeSettings

from .conftest import sample

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)
STDIN = b"3\n1 2 3\n"

PRINTS_WHEN_DESTROYED = """
class Last:
    def __init__(self, name): self.name = name
    def __del__(self): print("bye", self.name)
"""

PROGRAMS = {
    # Output in buffers
    "a line without its end": "print(input(), end='')",
    "bytes": "import sys\nsys.stdout.buffer.write(b'x')",
    "bytes after text": "import sys\nprint('a', end='')\nsys.stdout.buffer.write(b'x')",
    "a file on descriptor 1": "f = open(1, 'w')\nf.write('x')",
    "a file on descriptor 1 after text": "print('a', end='')\nf = open(1, 'w')\nf.write('x')",
    "a file that stays open": "f = open(1, 'w', closefd=False)\nf.write('x' * 100000)",
    "a file of bytes": "f = open(1, 'wb')\nf.write(b'x')",
    "a file by os.fdopen": "import os\nout = os.fdopen(1, 'w')\nprint('x', file=out)",
    "a file by os.dup": "import os\nout = os.fdopen(os.dup(1), 'w')\nprint('x', file=out)",
    "a file by its name": "out = open('/proc/self/fd/1', 'w')\nout.write('x')",
    "standard output replaced": "import sys\nsys.stdout = open(1, 'w')\nprint('x')",
    "standard output replaced after text": (
        "import sys\nprint('a')\nsys.stdout = open(1, 'w')\nprint('x')"
    ),
    "a wrapper of standard output": (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-8')\nprint('x')"
    ),
    "a buffered writer": (
        "import io, os\nout = io.BufferedWriter(io.FileIO(1, 'w'), 1 << 20)\n"
        "out.write(b'x' * 70000)"
    ),
    "a text buffer that is printed by an exit function": (
        "import atexit, io, sys\nreal, sys.stdout = sys.stdout, io.StringIO()\n"
        "atexit.register(lambda: real.write(sys.stdout.getvalue()))\nprint('x')"
    ),
    "a text buffer that is never printed": "import io, sys\nsys.stdout = io.StringIO()\nprint('x')",
    "a file in a function": (
        "def main():\n  out = open(1, 'w', closefd=False)\n  out.write('x')\nmain()"
    ),
    "a file in an attribute of a function": "def f(): pass\nf.out = open(1, 'w')\nf.out.write('x')",
    "a file in a cycle": "a = [open(1, 'w')]\na[0].write('x')\na.append(a)\ndel a",
    "a file in a class": "class A:\n  out = open(1, 'w')\nA.out.write('x')",
    "a file in a default argument": "def p(x, out=open(1, 'w')): out.write(x)\np('x')",
    "a file in a closure": (
        "def make():\n  out = open(1, 'w')\n  return lambda x: out.write(x)\n"
        "write = make()\nwrite('x')"
    ),
    "a file after an exception": "f = open(1, 'w')\nf.write('x')\n1 / 0",
    "a file after sys.exit": "import sys\nf = open(1, 'w')\nf.write('x')\nsys.exit(3)",
    "a file after os._exit": "import os\nf = open(1, 'w')\nf.write('x')\nos._exit(0)",
    "a local file after an exception": (
        "def main():\n  f = open(1, 'w')\n  f.write('x')\n  raise SystemExit(2)\nmain()"
    ),
    "standard output closed": "import sys\nprint('x')\nsys.stdout.close()",
    "standard output removed": "import sys\nprint('x')\nsys.stdout = None",
    "standard output deleted": "import sys\nprint('x')\ndel sys.stdout",
    "standard output detached": "import sys\nprint('x')\nb = sys.stdout.detach()\nb.write(b'y')",
    "output to a closed descriptor": "import os\nprint('x')\nos.close(1)",
    "a replacement without flush": (
        "import sys\nclass Out:\n  def write(self, x): sys.__stdout__.write(x)\n"
        "sys.stdout = Out()\nprint('x')"
    ),
    "output of a C library": "import ctypes\nctypes.CDLL(None).printf(b'x')\nprint('y')",
    # Objects that are destroyed
    "__del__ of a global": PRINTS_WHEN_DESTROYED + "x = Last('x')\nprint('end')",
    "__del__ of two globals": PRINTS_WHEN_DESTROYED + "x = Last('x')\ny = Last('y')",
    "__del__ in a long program": f"{PRINTS_WHEN_DESTROYED}x = Last('x')\n#{'-' * 60_000}",
    "__del__ in a cycle": PRINTS_WHEN_DESTROYED + "x = Last('x')\nx.me = x\ndel x\nprint('end')",
    "__del__ that uses globals": (
        "import math\nscale = 2\nclass A:\n"
        "  def __del__(self): print(math.floor(2.5) * scale)\na = A()"
    ),
    "__del__ after an exception": PRINTS_WHEN_DESTROYED + "x = Last('x')\nraise ValueError",
    "__del__ after exit": PRINTS_WHEN_DESTROYED + "x = Last('x')\nexit(4)",
    "__del__ that raises": "class A:\n  def __del__(self): print(1); 1 / 0\na = A()",
    "__del__ without a collector": (
        "import gc\ngc.disable()\n" + PRINTS_WHEN_DESTROYED + "x=Last(1)"
    ),
    "__del__ of a replaced output": (
        "import sys\nclass Out:\n  def write(self, x): sys.__stdout__.write(x)\n"
        "  def flush(self): pass\n  def __del__(self): sys.__stdout__.write('bye')\n"
        "sys.stdout = Out()\nprint('x')"
    ),
    "a generator that is not exhausted": (
        "def g():\n  try: yield 1\n  finally: print('closed')\nx = g()\nprint(next(x))"
    ),
    "a context that is not left": (
        "from contextlib import contextmanager\n@contextmanager\ndef c():\n"
        "  try: yield\n  finally: print('left')\nx = c()\nx.__enter__()\nprint('in')"
    ),
    "a callback of a weak reference": (
        "import weakref\nclass A: pass\na = A()\n"
        "r = weakref.ref(a, lambda _: print('gone'))\nprint(1)"
    ),
    "weakref.finalize": (
        "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'gone')\nprint('end')"
    ),
    # Functions that run at the end
    "exit functions": (
        "import atexit\natexit.register(print, 'first')\n"
        "atexit.register(print, 'second')\nprint('end')"
    ),
    "an exit function that raises": (
        "import atexit\natexit.register(print, 'a')\natexit.register(lambda: 1 / 0)\nprint('end')"
    ),
    "an exit function that exits": (
        "import atexit, os\natexit.register(print, 'never')\n"
        "atexit.register(lambda: (print('x', flush=True), os._exit(5)))"
    ),
    "an exit function after an exception": "import atexit\natexit.register(print, 'x')\n1 / 0",
    "an exit stack": (
        "import atexit, contextlib\ns = contextlib.ExitStack()\ns.callback(print, 'x')\n"
        "atexit.register(s.close)"
    ),
    # Threads
    "a thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('late'))).start()\nprint('end')"
    ),
    "a daemon thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(9), print('no')), daemon=True).start()\n"
        "print('end')"
    ),
    "a daemon thread that computes": (
        "import threading\ndef loop():\n  while True: pass\n"
        "threading.Thread(target=loop, daemon=True).start()\nprint('end')"
    ),
    "a thread after an exception": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\n1 / 0"
    ),
    "a thread that raises": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\n"
        "t.join()\nprint('x')"
    ),
    "a thread that exits": (
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,))\nt.start()\n"
        "t.join()\nprint('x')"
    ),
    "a thread that starts another": (
        "import threading, time\ndef f(n):\n  time.sleep(0.02)\n  print(n)\n"
        "  if n: threading.Thread(target=f, args=(n - 1,)).start()\n"
        "threading.Thread(target=f, args=(3,)).start()"
    ),
    "a timer": "import threading\nthreading.Timer(0.5, print, ['late']).start()\nprint('end')",
    "a pool that is not shut down": (
        "import sys, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "p = ThreadPoolExecutor(2)\n"  # the same line in one call: two threads may change places
        "for n in range(4): p.submit(lambda: (time.sleep(0.05), sys.stdout.write('late\\n')))"
    ),
    "a function that `threading` calls at the end": (
        "import threading\nthreading._register_atexit(print, 'x')\nprint('end')"
    ),
    "a wrapper by the type of standard output": (
        "import sys\nout = type(sys.stdout)(sys.stdout.buffer)\nout.write('x')"
    ),
    # Signals to itself, locks, and the source code
    "a signal with a handler": (
        "import os, signal\nsignal.signal(signal.SIGUSR1, lambda n, f: print(n, f.f_lineno))\n"
        "signal.raise_signal(signal.SIGUSR1)\nos.kill(os.getpid(), signal.SIGUSR1)\nprint('end')"
    ),
    "an interrupt": (
        "import os, signal\ntry:\n  os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n  print('x')"
    ),
    "a signal that is ignored": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.raise_signal(signal.SIGTERM)\nprint('x')"
    ),
    "an alarm": (
        "import signal, time\nseen = []\nsignal.signal(signal.SIGALRM, lambda *_: seen.append(1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "while not seen: time.sleep(0.01)\nprint(seen, 'end')"
    ),
    "a lock on a file": "import fcntl\nfcntl.lockf(1, fcntl.LOCK_EX)\nprint('x')",
    "its own source code": (
        "import inspect\n\ndef f():\n  return 1\n\nprint(inspect.getsource(f))"
    ),
    # Exit statuses
    "exit status above 255": "raise SystemExit(257)",
    "a negative exit status": "raise SystemExit(-1)",
    "a huge exit status": "raise SystemExit(10**30)",
    "an exit status that is a text": "print('x')\nraise SystemExit('no')",
    "an exit status that is None": "print('x')\nraise SystemExit",
    "an exit status that is a bool": "raise SystemExit(True)",
    "an assertion": "print('x')\nassert False",
}


@pytest.fixture(scope="module")
def jails() -> Iterator[JailPool]:
    pool = build(CodeSettings(workers=1))
    yield pool
    asyncio.run(pool.aclose())


async def run(jails: JailPool, program: str) -> RunResult:
    results: list[RunResult] = []

    def on_result(result: RunResult) -> bool:
        results.append(result)
        return True

    await jails.run(Job(program, [ProgramRun(STDIN)], LIMITS), on_result, Timing())
    return results[0]


@pytest.mark.parametrize("program", sample(PROGRAMS, 3))
async def test_a_program_ends_as_in_cpython(jails: JailPool, program: str, tmp_path: Path):
    result = await run(jails, program)
    file = tmp_path / "program.py"
    file.write_text(program)
    expected = subprocess.run(
        [find_python(None).path, "-I", "-X", "utf8", file],  # that of the jails
        input=STDIN,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (result.stdout, result.exit_code) == (expected.stdout, expected.returncode), result


@pytest.mark.parametrize(
    "program",
    [
        """
import shutil, os
with open("a", "w") as file:
    file.write("x")
for copy in (shutil.copy, shutil.copy2, shutil.copyfile):
    print(open(copy("a", "b")).read())
os.mkdir("c")
shutil.move("b", "c/d")
shutil.copytree("c", "e")
os.chmod("a", 0o600)
os.utime("a")
print(sorted(os.listdir()), os.listdir("e"))
""",
        """
import sqlite3
for _ in range(2):
    with sqlite3.connect("file.db") as database:
        database.execute("create table if not exists t (x)")
        database.execute("insert into t values (1)")
        database.commit()
        print(database.execute("select count(*) from t").fetchone())
    database.close()
""",
        """
import dbm.dumb, shelve, tempfile
with shelve.Shelf(dbm.dumb.open("shelf")) as shelf:
    shelf["a"] = [1]
    print(shelf["a"])
with tempfile.NamedTemporaryFile("w+") as file, tempfile.TemporaryDirectory() as folder:
    print(file.write("x"))
""",
    ],
)
async def test_a_program_uses_files_as_in_cpython(jails: JailPool, program: str, tmp_path: Path):
    if jails.provenance["isolation"] != "bubblewrap":
        pytest.skip("a program can write files only in bubblewrap's folders")
    result = await run(jails, program)
    expected = subprocess.run(
        [find_python(None).path, "-I", "-X", "utf8", "-c", program],
        capture_output=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (result.stdout, result.exit_code) == (expected.stdout, 0), result
