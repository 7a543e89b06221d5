"""Checker programs: any valid answer is accepted, and no output breaks a checker."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator

import httpx
import pytest

from rewardfleet_server.code.checkers import compiler
from rewardfleet_server.code.settings import CodeSettings

from ...conftest import DATA, table
from .conftest import (
    LEVELS,
    LIMITS,
    Service,
    check_verdicts,
    rows,
    sample,
    served_code,
    sources,
    stdio,
    verdicts,
)

pytestmark = [pytest.mark.slow, pytest.mark.protocol]

TESTLIB = DATA / "code" / "testlib" / "testlib.h"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SOURCES = sources("checkers")
PERMUTATION, PERMUTATION_CPP = SOURCES["permutation"], SOURCES["permutation in C++"]
UP, DOWN, ZERO = (
    f"n = int(input())\nprint(*range({numbers}))" for numbers in ("1, n + 1", "n, 0, -1", "n")
)


#: The beginning of a checker that else would accept everything.
REJECTION = "import sys\nif open(sys.argv[2]).read(1) in {'', 'q'}: sys.exit(1)\n"


def checked(source: str, *cases: tuple[str, str], language: str = "python") -> dict[str, object]:
    """Return stdio tests with a checker program."""
    program = {"language": language, "source": source}
    return stdio(*cases or [("3", "1 2 3")], checker_program=program)


@pytest.fixture(scope="module", params=LEVELS)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:  # workers share compiled checkers
            cache = cache.parent
        patch.setenv("XDG_CACHE_HOME", str(cache / "checkers"))
        with served_code(request.param, testlib_path=TESTLIB) as started:
            yield started


@pytest.fixture(scope="module", params=LEVELS)
def hasty_service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """One that soon ends checkers which do not end, also on a machine that is busy."""
    with served_code(request.param, max_cpu_s=0.3, max_wall_s=8.0, testlib_path=TESTLIB) as started:
        yield started


@pytest.fixture(
    params=[("python", PERMUTATION), pytest.param(("cpp", PERMUTATION_CPP), marks=needs_compiler)],
    ids=["python", "cpp"],
)
def permutation(request: pytest.FixtureRequest) -> Callable[..., dict[str, object]]:
    """Return a function that makes tests whose answer is any permutation."""
    language, source = request.param
    return lambda *cases: checked(source, *cases, language=language)


def check_refused(response: httpx.Response, message: str) -> None:
    assert (response.status_code, message in response.text) == (422, True), response.text


def test_any_valid_answer_is_accepted(service, permutation):
    cases = [(str(n), " ".join(map(str, range(1, n + 1)))) for n in range(1, 6)]
    for program in (UP, DOWN):
        score = service.score(program, permutation(*cases))
        assert score["score"] == 1.0, score["verdicts"]
        assert {each["verdict_by"] for each in score["verdicts"]} == {"checker"}
        assert "good" in score["verdicts"][0]["checker_message"]
        assert score["timing_ms"]["check"] > 0
    score = service.score(ZERO, permutation(*cases))
    assert {*verdicts(score)} == {"wrong_answer"}
    assert score["suspicions"] == []


def test_the_checker_sees_only_outputs_of_runs_that_ended_well(service, permutation):
    program = "n = int(input())\nprint(*range(n, 0, -1))\nif n == 2: raise ValueError\n"
    score = service.score(program, permutation(("1", "1"), ("2", "1 2"), ("3", "1 2 3")))
    assert verdicts(score) == ["accepted", "runtime_error", "accepted"]
    assert score["verdicts"][1]["checker_message"] == ""


def test_all_pass_stops_at_the_first_rejection(service, permutation):
    program = "n = int(input())\nprint(*(range(n, 0, -1) if n < 4 else range(n)))"
    cases = [(str(n), " ".join(map(str, range(1, n + 1)))) for n in range(1, 9)]
    score = service.score(program, permutation(*cases), mode="all_pass")
    assert verdicts(score) == ["accepted"] * 3 + ["wrong_answer"] + ["skipped"] * 4
    assert service.score(DOWN, permutation(*cases), mode="all_pass")["score"] == 1.0


@pytest.mark.parametrize("output", table("outputs_for_checkers"))
def test_no_output_breaks_a_checker(service, permutation, output):
    """An output that a checker cannot read is wrong, and never an error."""
    score = service.score(f"import sys\nsys.stdout.buffer.write({output})", permutation())
    assert score["verdicts"][0]["verdict"] == "wrong_answer", score["verdicts"]
    assert service.score(DOWN, permutation())["score"] == 1.0


@pytest.mark.parametrize("row", sample(rows("checkers")))
def test_a_checker_decides(service, row):
    """By its exit status, and on its own: it can reach nothing else."""
    check_verdicts(service, row)


@pytest.mark.parametrize(("action", "reason"), table("failing_checkers"))
def test_a_checker_that_fails_on_an_output_rejects_it(service, action, reason):
    check_failure(service, action, reason, LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["while True: pass", "import time; time.sleep(60)"])
def test_a_checker_that_does_not_end_on_an_output_rejects_it(hasty_service, action):
    check_failure(hasty_service, action, "time limit", {"cpu_s": 0.3, "wall_s": 8})


def check_failure(service: Service, action: str, reason: str | None, limits: dict) -> None:
    lines = "\n    ".join(["if open(sys.argv[2]).read() == 'bad\\n':", *action.split("\n")])
    tests = checked(f"{REJECTION}{lines}", ("good", "good"), ("bad", "good"), ("good", "good"))
    score = service.score("print(input())", tests, limits=limits)
    assert verdicts(score) == ["accepted", "wrong_answer", "accepted"]
    expected = [] if reason is None else [f"test 2: its checker failed on the output ({reason})"]
    assert score["suspicions"] == expected


@pytest.mark.parametrize("program", [DOWN, "1 / 0", "\0"])
@pytest.mark.parametrize(("source", "message"), table("invalid_checkers"))
def test_a_checker_that_fails_on_the_expected_output_is_invalid(service, program, source, message):
    """It is invalid whatever the program does, so that no program can cause an error."""
    check_refused(service.post(program, checked(source)), message)


@pytest.mark.slow
@pytest.mark.parametrize("program", [DOWN, "1 / 0", "\0"])
def test_a_checker_that_does_not_end_on_the_expected_output_is_invalid(hasty_service, program):
    limits = {"cpu_s": 0.3, "wall_s": 8}
    response = hasty_service.post(program, checked("while True: pass"), limits=limits)
    check_refused(response, "time limit")


@pytest.mark.parametrize(("source", "message"), table("source_errors_of_checkers"))
def test_an_error_in_the_source_code_of_a_checker_is_always_found(service, source, message):
    check_refused(service.post("print(5)", checked(source, ("", ""))), message)


def test_programs_and_checkers_have_different_jails(service):
    """The supervisor of a checker's jail reads expected outputs, and each program is its fork."""
    where = "import os\nprint(os.getppid(), os.readlink('/proc/self/ns/pid'))"
    for _ in range(8):
        verdict = service.score(where, checked(REJECTION + where))["verdicts"][0]
        assert verdict["checker_message"] != verdict["stdout"].strip()
        assert verdict["checker_message"]


def test_a_program_cannot_see_the_checker_or_the_answer(service):
    source = "# checker-mark\nimport sys\nprint(open(sys.argv[2]).read())"
    tests = checked(REJECTION + source, ("1", "secret 1"), ("2", "secret 2"), ("3", "secret 3"))
    for _ in range(2):
        score = service.score(SOURCES["a program that looks for its checker"], tests)
        assert {each["stdout"] for each in score["verdicts"]} == {"True []\n"}, score["verdicts"]


def test_checks_share_nothing(service):
    score = service.score(DOWN, checked(REJECTION + SOURCES["marks"], *[("3", "1 2 3")] * 4))
    assert {each["checker_message"] for each in score["verdicts"]} in ({"False"}, {"None"})


def test_outputs_that_do_not_fit_into_memory_together_are_checked_in_parts(service):
    source = "import os, sys\nsys.exit(os.path.getsize(sys.argv[2]) != 2_000_000)"
    tests = checked(REJECTION + source, *[(str(number), "x") for number in range(20)])
    program = "n = int(input())\nprint('x' * (1_999_999 - n // 15))"
    score = service.score(program, tests)
    assert verdicts(score) == ["accepted"] * 15 + ["wrong_answer"] * 5


def test_the_original_program_of_a_critique_is_checked_as_well(service):
    fields = {"critique": "Overall judgment: Correct", "original_program": DOWN}
    score = service.score(UP, checked(PERMUTATION), **fields)
    assert score["details"]["judgment_correct"] == 1.0


@pytest.mark.slow
def test_a_slow_checker_ends_with_the_time_of_the_submission():
    source = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    tests = checked(source, *[("", "")] * 8)
    with served_code(max_submission_s=0.4) as service:
        score = service.score("print()", tests)
    found = verdicts(score)
    assert (found[0], found[-1]) == ("accepted", "skipped")
    assert "wrong_answer" not in found


# Rows of CodeContests+


@needs_compiler
def test_a_row_of_code_contests_plus_brings_its_checker(service):
    cases = [{"input": "3\n", "output": "1 2 3\n"}, {"input": "2\n", "output": "1 2\n"}]
    row = {"time_limit": 400, "checker": PERMUTATION_CPP, "test_cases": cases}
    tests = {"kind": "dataset", "dataset": "code_contests", "row": row}
    score = service.score(DOWN, tests)
    assert verdicts(score) == ["accepted"] * 2
    assert score["verdicts"][0]["verdict_by"] == "checker"
    assert service.score(ZERO, tests)["score"] == 0.0


# C++


@needs_compiler
def test_a_checker_without_testlib_decides_by_its_exit_status(service):
    tests = checked(SOURCES["without testlib"], ("3", "3"), language="cpp")
    score = service.score("print(input())", tests)
    assert score["verdicts"][0]["checker_message"] == "got 3 of 3"
    assert score["score"] == 1.0
    assert service.verdict("print(4)", tests) == "wrong_answer"
    score = service.score("print('x')", tests)
    assert score["verdicts"][0]["verdict"] == "wrong_answer"
    assert score["suspicions"][0].startswith("test 1: its checker failed on the output (signal")


@needs_compiler
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int main() { return undefined; }", "undefined"),
        ("int other() { return 0; }", "main"),
        ('#include "/etc/passwd"\nint main() {}', "/etc/passwd"),
        ('asm(".incbin \\"/etc/passwd\\"");\nint main() {}', "/etc/passwd"),
        ('#include "/proc/self/environ"\nint main() {}', "/proc/self/environ"),
        pytest.param("#include __FILE__\nint main() {}", "nested", marks=pytest.mark.slow),
        pytest.param("char big[1 << 30] = {1};\nint main() {}", "", marks=pytest.mark.slow),
    ],
)
def test_a_checker_that_does_not_compile_is_invalid(service, source, message):
    for cases in ([], [("", "")]):
        response = service.post(DOWN, checked(source, *cases, language="cpp"))
        check_refused(response, message)
        assert "root:" not in response.text


@needs_compiler
def test_partial_points_are_no_right_answer_and_testlib_is_not_included(service):
    """`quitf(_pc(0))` of the original exits with 0."""
    source = '#include "testlib.h"\nint main(int c, char** v) { quitf(_pc(0), "points"); }'
    assert service.verdict(DOWN, checked(source, language="cpp")) == "wrong_answer"
    with served_code() as without:
        check_refused(without.post(DOWN, checked(source, language="cpp")), "testlib_path")


def test_without_a_compiler_a_checker_in_cpp_is_invalid(monkeypatch):
    monkeypatch.setattr(compiler, "_COMPILERS", ("no-such-compiler",))
    with served_code() as service:
        response = service.post(DOWN, checked(PERMUTATION_CPP, language="cpp"))
        check_refused(response, "requires a compiler")
        assert service.score(DOWN, checked(PERMUTATION))["score"] == 1.0


@needs_compiler
def test_a_checker_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = "int main() { return 0; }"
    compiled: list[str] = []
    compile_now = compiler.Compiler._compile

    def count(self: compiler.Compiler, given: str) -> bytes:
        compiled.append(given)
        return compile_now(self, given)

    monkeypatch.setattr(compiler.Compiler, "_compile", count)

    async def compile_often() -> None:
        for _ in range(2):  # the second one is another process
            one = compiler.Compiler("landlock", CodeSettings())
            libraries = await asyncio.gather(*(one.compile(source) for _ in range(4)))
            assert len(set(libraries)) == 1

    asyncio.run(compile_often())
    assert compiled == [source]
    (file,) = (tmp_path / "rewardfleet" / "checkers").iterdir()
    assert file.suffix == ".so"
