"""No data of a submission reaches a program of another one, not even in freed memory."""

import contextlib
import secrets

import pytest

from .conftest import LEVELS, LIMITS, Service, asserts, functional, served_code, stdio

pytestmark = pytest.mark.slow

#: Prints each text in its memory that begins with a mark, which it does not contain itself.
THIEF = """
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
mark = re.compile("".join(map(chr, MARK)).encode() + b"[0-9a-f]{16}")
reader, writer = os.pipe()
places, size = [libc.sbrk(0), id(object()), id(mark), ctypes.addressof(ctypes.c_int())], 1 << 16
places.append(ctypes.cast(libc.printf, ctypes.c_void_p).value)
ranges = {(p >> 16) + n for p in places for n in range(-1200, 1200)}
try:
    for line in open("/proc/self/maps"):
        start, end = (int(each, 16) >> 16 for each in line.split()[0].split("-"))
        if line.split()[1][0] == "r" and end - start < 4096:
            ranges |= set(range(start, end + 1))
except OSError:
    pass
found, tail = set(), b""
for number in sorted(ranges):
    page = b""
    for address in range(number << 16, (number + 1) << 16, 4096):
        if libc.write(writer, ctypes.c_void_p(address), 4096) == 4096:
            page += os.read(reader, 4096)
    found |= {each.group().decode() for each in mark.finditer(tail + page)}
    tail = page[-64:]
for folder, _, names in list(os.walk("/tmp")) + list(os.walk("/dev/shm")):
    found |= {os.path.join(folder, name) for name in names}
for number in range(3, 600):
    try:
        found |= {each.group().decode() for each in mark.finditer(os.pread(number, 1 << 20, 0))}
    except OSError:
        pass
print(sorted(found)[:20] or "nothing", flush=True)
"""


@pytest.fixture(scope="module", params=LEVELS)
def service(request: pytest.FixtureRequest):
    """A service with one jail that is used, whatever the programs do."""
    with served_code(request.param, workers=1) as service:
        yield service


def thief(mark: str) -> str:
    return f"MARK = {[ord(each) for each in mark]}\n{THIEF}"


def steal(service: Service, mark: str) -> str:
    limits = {**LIMITS, "cpu_s": 20, "wall_s": 40}
    score = service.score(thief(mark), stdio(("", "nothing")), limits=limits)
    (verdict,) = score["verdicts"]
    assert verdict["verdict"] in {"accepted", "wrong_answer"}, verdict
    return verdict["stdout"]


def test_a_thief_finds_what_is_in_its_own_memory(service: Service):
    """So the other tests can fail."""
    mark = f"rf{secrets.token_hex(3)}x"
    program = f"x = '{mark}' + '{secrets.token_hex(8)}'\n{thief(mark)}"
    limits = {**LIMITS, "cpu_s": 20, "wall_s": 40}
    score = service.score(program, stdio(("", "nothing")), limits=limits)
    assert mark in score["verdicts"][0]["stdout"]


def submissions(item) -> dict[str, tuple[str, dict]]:
    """Return programs and tests that have marked data in one place each."""
    return {
        "source": (f"x = '{item()}'\nprint(1)", stdio(("", "1"))),
        "a source that does not compile": (f"x = '{item()}", stdio(("", "1"))),
        "standard input": ("print(len(input()) > 0)", stdio((item(), "True"))),
        "standard output": (f"print('{item()}' * 1000)", stdio(("", "1"))),
        "expected output": ("print(1)", stdio(("", item()), ("", item() * 100))),
        "standard error": (f"import sys\nsys.stderr.write('{item()}' * 99)", stdio(("", "1"))),
        "a traceback": (f"raise ValueError('{item()}')", stdio(("", "1"))),
        "setup": ("print(x[:1])", stdio(("", "r"), setup=f"x = '{item()}'")),
        "a file": (f"open('/tmp/{item()}', 'w').write('{item()}')", stdio(("", ""))),
        "an argument of a function": ("def f(x): return x", functional("f", ([item()], 1))),
        "an answer of a function": (f"def f(): return ['{item()}'] * 99", functional("f", ([], 1))),
        "an expected answer": ("def f(): return 1", functional("f", ([], [item()]))),
        "a literal": ("def f(): return 1", asserts(f"assert f() == '{item()}'")),
        "an assert": ("def f(x): return x", asserts(f"assert f(1) in ('{item()}',)")),
        "an argument of an assert": ("def f(x): return x", asserts(f"assert f('{item()}') + 1")),
        "an answer in an assert": (f"def f(): return '{item()}'", asserts("assert f() in (1,)")),
        "an exception in an assert": (f"def f(): 1 / 0 # {item()}", asserts("assert f() in (1,)")),
        "setup of an assert": (
            "def f(): return 1", asserts("assert f() in (x,)", setup=f"x = '{item()}'")
        ),
        "a checker": (
            "print(1)",
            {
                **stdio((item(), item())),
                "checker_program": {"source": f"x = '{item()}'", "language": "python"},
            },
        ),
    }  # fmt: skip


def test_nothing_of_earlier_submissions_is_in_the_memory_of_a_program(service: Service):
    mark = f"rf{secrets.token_hex(3)}x"
    for _ in range(2):
        for program, tests in submissions(lambda: mark + secrets.token_hex(8)).values():
            for mode in ("pass_rate", "all_pass"):
                with contextlib.suppress(KeyError):
                    service.score(f"{program}\n# {secrets.token_hex(8)}", tests, mode=mode)
    assert steal(service, mark) == "nothing\n"


def test_nothing_of_other_tests_is_in_the_memory_of_a_program(service: Service):
    """Neither their inputs nor their expected outputs, in any order of the tests."""
    mark = f"rf{secrets.token_hex(3)}x"
    limits = {**LIMITS, "cpu_s": 20, "wall_s": 40}

    def item() -> str:
        return mark + secrets.token_hex(8)

    cases = [(item(), item()) for _ in range(3)]
    program = f"import sys\nif 0: input()\n{thief(mark)}"
    score = service.score(program, stdio(*cases), limits=limits)
    assert {each["stdout"] for each in score["verdicts"]} == {"nothing\n"}

    body = "\n".join(f"    {line}" for line in thief(mark).splitlines())
    program = f"def f(x):\n{body}"
    expected = [f"assert f({n}) == ('{item()}' + '')" for n in range(3)]
    literal = [f"assert f({n}) == '{item()}'" for n in range(3)]
    for tests in (
        asserts(*expected),
        asserts(*expected, single_run=True),
        asserts(*literal),
        asserts(*literal, single_run=True),
        functional("f", ([1], item()), ([2], item())),
    ):
        score = service.score(program, tests, limits=limits)
        for verdict in score["verdicts"]:
            assert "nothing" in verdict["stdout"] and mark not in verdict["stdout"], verdict


#: Prints digests of what a program finds of its process when it starts, and the address of `sys`.
STATE = """
import sys
modules = sorted(sys.modules)
def show(*values):
    print(zlib.crc32(str(values).encode()), end=" ")
import zlib
counts = __import__("gc").get_count(), sys.getallocatedblocks()
import atexit, builtins, gc, linecache, os, random, resource, signal, threading, warnings
show(modules, sorted(vars(sys)), sorted(vars(builtins)), sorted(globals()))
show(counts, gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), sys.getrecursionlimit())
show([id(object()) for _ in range(3)], id([]), id("x" * 50), id(sys), hash("x"), {"a", "b", "c"})
show(random.getstate(), sys.argv, sys.path, sys.meta_path, linecache.cache, warnings.filters)
show(os.getcwd(), os.environ, os.umask(0o22), threading.enumerate(), atexit._ncallbacks())
show([signal.getsignal(each) for each in sorted(signal.valid_signals())])
show(signal.pthread_sigmask(signal.SIG_BLOCK, []), [resource.getrlimit(n) for n in range(16)])
opened = []
for number in range(600):
    try:
        opened += number, os.fstat(number).st_mode, os.lseek(number, 0, os.SEEK_CUR) * (number > 2)
    except OSError:
        pass
show(opened)
frame, frames = sys._getframe(), []
while frame := frame.f_back:
    frames.append((frame.f_code, sorted(frame.f_locals), sorted(frame.f_globals)))
show(frames)
print("in", id(sys))
"""
#: Changes what it can of its process.
VANDAL = """
import atexit, builtins, gc, linecache, os, random, resource, signal, sys, threading, warnings
random.seed(1)
gc.unfreeze(), gc.disable(), gc.set_threshold(1)
os.environ["LEFT"] = builtins.left = sys.left = sys.modules["left"] = "left"
os.umask(0), os.chdir("/"), sys.argv.append("left"), sys.path.append("left"), sys.meta_path.clear()
sys.setrecursionlimit(999), warnings.simplefilter("error"), linecache.cache.clear()
signal.signal(signal.SIGTERM, print), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99)), atexit.register(print, "left")
threading.Thread(target=threading.Event().wait, daemon=True).start()
for number in range(3, 600):
    try:
        os.write(number, b"left"), os.lseek(number, 1, os.SEEK_SET), os.ftruncate(number, 9)
        os.dup2(number, 200)
    except OSError:
        pass
frame, reached = sys._getframe(), []
while frame := frame.f_back:
    reached += [frame.f_globals, *frame.f_locals.values()]
for each in reached:
    owner = getattr(each, "__self__", each)
    names = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    for name in set(names) - {"os", "__builtins__"}:
        names[name] = "left"
"""


def test_all_runs_start_in_the_same_state(service: Service):
    """Whatever ran before: addresses, hashes, descriptors, and random numbers are the same."""
    twice = stdio(("", ""), ("", ""))  # the first run compiles the program, the second one loads it
    others = [("x = 1", twice), *submissions(lambda: secrets.token_hex(50)).values()]
    others += [(VANDAL, twice), (f"def f(x): return x\n{VANDAL}", functional("f", ([1], 1)))]
    states: dict[str, list[str]] = {}  # by jail: a long program lets the service start another one
    for program, tests in others:
        with contextlib.suppress(KeyError):
            service.score(program, tests)
        again = service.score(f"{STATE}\n# {secrets.token_hex(4)}", twice)
        state = [each["stdout"] for each in again["verdicts"]]
        _, is_complete, jail = state[0].partition("in")
        assert is_complete
        assert states.setdefault(jail, state) == state, program
    assert len(states) < len(others) / 4
