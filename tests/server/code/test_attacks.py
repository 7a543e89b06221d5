"""Attacks on the jail, each over HTTP at both isolation levels.

A program that attempts what is forbidden prints `held` if it was refused: accepted means that the
jail held. After each attack, the next program must be unharmed, and no process may be left. The
programs are in `tests/data/code/jail.jsonl`.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rewardfleet_server.testing import wait_until

from ...measure import Stopwatch
from ..http.test_requests import metric
from ..processes import descendants
from .conftest import (
    LIMITS,
    SHORT_LIMITS,
    Service,
    asserts,
    functional,
    programs,
    rows,
    sample,
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
    is_writable = level_service.level == "bubblewrap"
    found = "glob.glob('/tmp/*') + glob.glob('/dev/shm/*')" if is_writable else "[]"
    program = f"import glob\nprint(input(), {found})"
    score = level_service.score(program, stdio(("y", "y []"), ("z", "z []")))
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


def program_trying(attempts: Iterable[str], setup: str = "") -> str:
    """Return a program that prints `held` if each of these expressions raises OSError."""
    listed = "".join(f"lambda: {attempt}\n, " for attempt in attempts)
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


REFUSED = rows("jail", "refused")
#: What must not be possible with a file `name` of the host.
FILE_ATTEMPTS = [
    *("os.truncate(name, 0)", "os.open(name, os.O_RDONLY | os.O_TRUNC)", "open(name, 'w')"),
    *("os.open(name, os.O_RDONLY)", "open(name, 'r+')", "os.rename(name, name + 'x')"),
    *("os.unlink(name)", "os.link(name, name + 'x')", "os.setxattr(name, 'user.x', b'x')"),
]


@pytest.mark.parametrize("row", sample(REFUSED))
def test_forbidden_actions_are_refused(service: Service, row):
    score = service.score(program_trying(**row), HELD)
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
        setup = f"""
name = {file.name!r}
for change in (lambda: os.chmod(name, 0o777), lambda: os.utime(name, (1, 1))):
    try:
        change()  # it has no effect
    except OSError:
        pass
"""
        assert service.score(program_trying(FILE_ATTEMPTS, setup), HELD)["score"] == 1.0
        after = os.stat(file.name)
        for name in ("st_mode", "st_mtime", "st_size"):
            assert getattr(after, name) == getattr(before, name)


@pytest.mark.parametrize("name", ["read files of the host", "read /proc of others", "network"])
def test_without_a_jail_the_same_program_escapes(name: str):
    """Show that the tests above can fail."""
    command = [sys.executable, "-c", program_trying(**REFUSED[name])]
    assert b"escaped" in subprocess.check_output(command)


#: Programs that exceed limits, and the verdicts that they may have.
ENDED = {
    **rows("jail", "ended"),
    "deeper source": {"program": "x = " + "-" * 200_000 + "1", "verdicts": ["compile_error"]},
}


@pytest.mark.parametrize("row", sample(ENDED))
def test_programs_that_exceed_limits_are_ended(service: Service, row):
    watch = Stopwatch()
    # A program that must exceed another limit than time gets enough time.
    limits = SHORT_LIMITS if "time_limit" in row["verdicts"] else LIMITS
    score = service.score(row["program"], stdio(("", "x")), limits=limits)
    assert score["verdicts"][0]["verdict"] in row["verdicts"], score
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
    limits = {**LIMITS, "memory_mb": 16}
    for program, printed in (
        ("import os\nprint(sum(iter(lambda: len(os.read(0, 65536)), 0)))", 24 << 20),
        ("print(len(bytearray(12 << 20)))", 12 << 20),
    ):
        tests = stdio(("7" * (24 << 20), str(printed)))
        assert service.verdict(program, tests, limits=limits) == "accepted"


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


# Programs that try to pass without solving the task


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


FORGERIES = rows("jail", "forgeries")
#: The expected value, which no forgery contains.
SECRET = "73856093"


@pytest.mark.protocol
@pytest.mark.parametrize("row", sample(FORGERIES))
@pytest.mark.parametrize("kind", ["functional", "compared assert", "assert in the jail", "stdio"])
def test_forgeries_do_not_pass(service: Service, row, kind: str):
    tests = {
        "functional": functional("f", ([2, 3], int(SECRET))),
        "compared assert": asserts(f"assert f(2, 3) == {SECRET}"),
        "assert in the jail": asserts(
            "assert abs(f(2, 3) - int(str(MANY))) < 1", setup="MANY = 7385"
        ),
        "stdio": stdio(("", SECRET)),
    }[kind]
    score = service.score(row["program"], tests, limits=SHORT_LIMITS)
    assert score["score"] == 0.0, score
    assert score["verdicts"][0]["verdict"] != "skipped"


def test_an_early_exit_and_forged_lines_are_reported_as_suspicious(service: Service):
    score = service.score(FORGERIES["os._exit at import"]["program"], asserts("assert f(1) == 2"))
    assert score["verdicts"][0]["verdict"] == "exited_early"
    assert score["suspicions"] == ["test 1: exited, as if successful, before it had answered"]
    score = service.score(FORGERIES["written descriptors"]["program"], functional("f", ([1], 5)))
    assert "test 1: wrote to the report, where only the supervisor writes" in score["suspicions"]


@pytest.mark.parametrize(("equal", "paid"), [("True", 1.0), ("False", 0.0)])
def test_a_test_is_repeated_if_only_that_helps_the_solution_of_its_row(
    service: Service, equal: str, paid: float
):
    four = "class Four:\n  __eq__ = lambda *_: {}"
    row = {"test": "class F(Four): pass\nassert F() == 4", "solution": four.format(equal)}
    score = service.score(four.format("True"), {"kind": "dataset", "dataset": "auto", "row": row})
    assert score["score"] == paid
    assert ("test 1: decided by the program's process" in score["suspicions"]) == bool(paid)


# Correct programs that other sandboxes fail


LARGE = {
    "a line of a megabyte": ("print('x' * 2**20)", "", "x" * 2**20),
    "ten megabytes of input": (
        "import sys\nprint(sum(line.count('7') * 7 for line in sys.stdin))",
        ("7" * 79 + "\n") * 131_072,
        f"{131_072 * 79 * 7}",
    ),
    "input that is never read": ("print('done')", "x" * 2**20, "done"),
}


@pytest.mark.parametrize(("program", "stdin", "printed"), LARGE.values(), ids=LARGE)
def test_programs_with_large_input_or_output_pass(
    service: Service, program: str, stdin: str, printed: str
):
    assert service.verdict(program, stdio((stdin, printed))) == "accepted"


#: The order of a set with PYTHONHASHSEED=0, as in the jails.
SET = "print(''.join({'a', 'b', 'c', 'd', 'e'}))"
SET_ORDER = subprocess.check_output([sys.executable, "-c", SET], env={"PYTHONHASHSEED": "0"})
HONEST = {
    **rows("jail", "honest"),
    "sets in the same order": {"program": SET, "printed": SET_ORDER.decode()},
}


@pytest.mark.protocol
@pytest.mark.parametrize("row", sample(HONEST))
def test_honest_programs_pass(service: Service, row):
    score = service.score(row["program"], stdio(("in", row["printed"])))
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


@pytest.mark.parametrize("row", sample(rows("jail", "processes")))
def test_a_refused_process_is_explained(service: Service, row):
    score = service.score(f"import os, sys\n{row['program']}", stdio(("", "")))
    (verdict,) = score["verdicts"]
    assert verdict["verdict"] == "runtime_error"
    assert "the jail does not allow new processes" in verdict["stderr"], verdict
    assert verdict["wall_ms"] < 10_000


REFUSALS = {
    "open('/usr/x', 'w')": "/usr/x",
    "import socket\nsocket.socket()": "_socket.socket.__init__(self, family, type, proto, fileno)",
    "try: open('/usr/x', 'w')\nexcept OSError as error: raise ValueError from error": "/usr/x",
}


def test_what_the_jail_refused_is_named_and_counted(service: Service):
    name = "rewardfleet_refused_by_jail_total"
    before = metric(service.client, name)
    for program, refused in REFUSALS.items():
        (verdict,) = service.score(program, stdio(("", "")))["verdicts"]
        assert verdict["refused_by_jail"] == refused
        assert verdict["stderr"].endswith(f"\nrefused by the jail: {refused}\n")
    assert metric(service.client, name) == before + len(REFUSALS)


def test_the_package_to_which_the_jail_refused_something_is_counted():
    """A program can name any number of packages: those beyond 50 are one."""
    forging = "import sys\nsys.stderr.write('site-packages/p{}/x.py')\nopen('/usr/x', 'w')"
    programs = ["open('/usr/x', 'w')", "import numpy\nnumpy.save('/usr/x', [1])"]
    with served_code() as service:
        for program in [*programs, *map(forging.format, range(52))]:
            service.score(program, stdio(("", "")))
        name = 'rewardfleet_refused_by_jail_total{package="%s"}'
        found = {each: metric(service.client, name % each) for each in ("", "numpy", "other")}
    assert found == {"": 1, "numpy": 1, "other": 4}


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
def test_the_service_is_as_fast_after_attacks_as_before(level_service: Service):
    """As one that was never attacked, in turns: how fast the machine is changes."""

    def seconds(service: Service) -> float:
        watch = Stopwatch()
        for _ in range(10):
            tests = stdio(*(("1", "1"),) * 10)
            assert service.score("print(input())", tests)["score"] == 1.0
        return watch.seconds

    for name in ("endless stdout", "4 GB at once", "thread bomb", "many files", "deep folders"):
        level_service.score(ENDED[name]["program"], stdio(("", "x")), limits=SHORT_LIMITS)
    with served_code(level_service.level) as unharmed:
        seconds(unharmed)
        # A factor of two and many attempts, because of other work on the machine.
        assert any(seconds(level_service) < 2 * seconds(unharmed) for _ in range(20))
