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


def test_all_runs_start_in_the_same_state(service: Service):
    """Whatever ran before: addresses, hashes, descriptors, and random numbers are the same."""
    state = """
import gc, os, random, sys, threading, uuid
print([id(object()) for _ in range(3)], id([]), id("x" * 50), hash("x"), random.random())
print(sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else "")
print(gc.get_count(), len(sys.modules), os.getcwd(), os.environ, sys.getallocatedblocks())
"""
    first = service.score(state, stdio(("", "")))["verdicts"][0]["stdout"]
    for program, tests in submissions(lambda: secrets.token_hex(50)).values():
        with contextlib.suppress(KeyError):
            service.score(program, tests)
        again = service.score(f"{state}\n# {secrets.token_hex(4)}", stdio(("", "")))
        assert again["verdicts"][0]["stdout"] == first
