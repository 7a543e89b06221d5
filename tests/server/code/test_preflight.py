"""Preflight: tests that fail by themselves are invalid; what a program provokes is judged."""

import pytest

from rewardfleet.wire.code import AssertTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.sandboxes import RunLimits, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.code.tests.imports import import_statements
from rewardfleet_server.code.tests.preflight import Preflight
from rewardfleet_server.code.tests.prepared import prepare
from rewardfleet_server.testing import FakeSandbox

from ...conftest import table
from ..video.test_bad_input import check_problem
from .conftest import asserts, rows, sample, stdio

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)

F = "def f():\n    return 1"


IMPORTS = rows("preflight", "imports")
IMPORTS["deep"] = {"source": "import a\nx = " + "-" * 100_000 + "1", "statements": "pass"}


@pytest.mark.parametrize("row", sample(IMPORTS))
def test_imports_that_are_sure_to_run_are_found(row):
    for sources in ([row["source"]], [row["source"]] * 2):
        assert import_statements(sources) == row["statements"]


async def test_the_same_imports_are_checked_once():
    sandbox = FakeSandbox(RunResult(test_report=b'{"held": true}'))
    check = Preflight(sandbox, CodeSettings(), None)
    cases = [{"stdin": "", "stdout": ""}]
    for tests in (
        AssertTests(kind="asserts", cases=["assert f() == 1"]),
        StdioTests(kind="stdio", cases=cases),
    ):
        await check.check(prepare(tests, ""), LIMITS)
    assert not sandbox.jobs, "nothing can fail"
    for number in range(3):
        cases = [f"assert f({number}) == math.pi", "import math\nassert f() == math.pi"]
        tests = AssertTests(kind="asserts", cases=cases)
        await check.check(prepare(tests, ""), LIMITS)
    assert len(sandbox.jobs) == 3, "its imports; the script alone, and until it uses a program"


@pytest.mark.parametrize("row", sample(rows("preflight", "missing")))
@pytest.mark.parametrize("revision", [F, "raise ImportError", "prose only", ""])
def test_a_missing_module_of_tests_is_invalid_whatever_the_program(service, row, revision):
    how = "rewardfleet serve code --packages numpy,pytest,sortedcontainers,rf_absent"
    response = service.post(revision, row["tests"])
    check_problem(response, "invalid", "No module named 'rf_absent'", how)


@pytest.mark.parametrize("setup", table("setups_that_import"))
def test_tests_whose_imports_do_not_fail_are_run(service, setup):
    assert service.verdict(F, asserts("assert f() == 1", setup=setup)) == "accepted"


@pytest.mark.parametrize("row", sample(rows("preflight", "broken")))
@pytest.mark.parametrize("revision", [F, "while True: pass", "no program"])
def test_tests_that_fail_without_the_program_are_invalid(service, row, revision):
    options = {"limits": row["limits"]} if "limits" in row else {}
    response = service.post(revision, row["tests"], **options)
    check_problem(response, "invalid")
    assert response.json()["detail"].startswith(row["reason"])


#: Passes the tests of the table, also those that need more of it than a function.
PROGRAM = """
open("out.txt", "w").write("1")
class C: pass
class E(Exception): pass
def sum(a, b): return 3
def f(x):
    if x == "x": raise E
    return 1
globals().get("R", {})["f"] = f
"""


@pytest.mark.parametrize("row", sample(rows("preflight", "alone")))
def test_a_case_may_not_fail_the_program_for_what_that_did_not_do(service, row):
    for revision in (PROGRAM, "def f(x): raise ValueError"):
        response = service.post(revision, row["tests"])
        if row["reason"]:
            assert (response.status_code, response.json()["detail"]) == (422, row["reason"])
        else:
            assert response.json()["score"] == (revision is PROGRAM), response.text


def test_a_case_that_takes_too_long_by_itself_is_not_invalid(service):
    tests = asserts("while True: pass\nassert f() == 1")
    assert service.verdict(F, tests, limits={"cpu_s": 0.2, "wall_s": 5}) == "time_limit"


def test_a_setup_may_read_standard_input_and_use_the_time_of_a_run(service):
    tests = stdio(("3\n", "3\n"), ("4\n", "4\n"), setup="n = int(input())")
    assert service.score("print(n)", tests)["score"] == 1.0
    tests = asserts("assert f() == 1", setup="import time\ntime.sleep(1)")
    response = service.post(F, tests, limits={"wall_s": 0.1})
    assert response.json()["detail"] == "tests.setup: fails without the program: time limit"
    assert service.post(F, tests, limits={"wall_s": 5}).json()["score"] == 1.0
    assert service.post(F, tests, limits={"wall_s": 0.1}).status_code == 422, "not the same trial"


@pytest.mark.parametrize("row", sample(rows("preflight", "provoked")))
def test_import_errors_that_a_program_provokes_are_judged(service, row):
    case = "import fractions\nassert f() == fractions.Fraction(2)"
    for tests in (asserts(case), asserts("assert f() == 2", setup="import fractions")):
        score = service.score(row["program"], tests)
        assert (score["status"], score["score"]) == ("ok", 0.0)
        assert score["verdicts"][0]["verdict"] in {"runtime_error", "wrong_answer", "exited_early"}


async def test_a_failed_check_is_repeated_as_the_module_may_be_installed_by_then():
    ready = False

    class Sandbox(FakeSandbox):
        async def run(self, job, on_result, timing):
            stderr = b"ModuleNotFoundError: No module named 'rf_absent'\n"
            held = RunResult(test_report=b'{"held": true}')
            self.result = held if ready else RunResult(exit_code=1, stderr=stderr)
            await super().run(job, on_result, timing)

    check = Preflight(Sandbox(), CodeSettings(), None)
    tests = AssertTests(kind="asserts", cases=["assert f()"], setup="import rf_absent")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="rf_absent"):
            await check.check(prepare(tests, ""), LIMITS)
    ready = True
    await check.check(prepare(tests, ""), LIMITS)
