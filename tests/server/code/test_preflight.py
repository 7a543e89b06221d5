"""Preflight: tests that fail by themselves are invalid; what a program provokes is judged."""

from collections.abc import Iterator

import pytest

from rewardfleet.wire.code import AssertTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.sandboxes import RunLimits, RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.code.tests.imports import import_statements
from rewardfleet_server.code.tests.preflight import Preflight
from rewardfleet_server.code.tests.prepared import prepare
from rewardfleet_server.testing import FakeSandbox

from .conftest import Service, asserts, functional, served_code, stdio

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)

F = "def f():\n    return 1"


@pytest.mark.parametrize(
    ("source", "statements"),
    [
        ("import a, b.c as d\nfrom e import f as g", "from e import f as g\nimport a\nimport b.c"),
        ("def check(f):\n    import a\n    assert f() == a.x", "import a"),
        ("class A:\n    def f(self):\n        from a import *", "from a import *"),
        ("assert __import__('a.b').b == importlib.import_module('c').d", "import a.b\nimport c"),
        ("x = __import__(name)\nimport_module()\n__import__('a; b')", "pass"),
        ("try:\n    import a\nexcept ImportError:\n    import b", "pass"),
        ("with raises(ImportError):\n    import a\nwith suppress(OSError):\n    import b", "pass"),
        ("if sys.version_info > (3, 99):\n    import a\nelse:\n    import b", "pass"),
        ("if TYPE_CHECKING:\n    import a", "pass"),
        ("if f():\n    import a\nelse:\n    import b", "import a\nimport b"),
        ("for x in f():\n    import a\nwhile g():\n    import b", "import a\nimport b"),
        ("match f():\n    case 1:\n        import a", "import a"),
        ("try:\n    f()\nfinally:\n    import a", "import a"),
        ("try:\n    import a\nexcept ValueError:\n    pass\nfinally:\n    import b", "import b"),
        ("with open('x') as y:\n    import a", "import a"),
        ("@__import__('a').b\ndef f(x=__import__('c')): pass", "import a\nimport c"),
        ("async def f():\n    import a", "import a"),
        ("g = lambda: __import__('a')", "import a"),
        ("import_module(name='a.b')", "import a.b"),
        ("exec('import a')\nexec(\"exec('import b')\")", "import a\nimport b"),
        ("exec(\"'\")", "pass"),
        ("from program import f\nimport __main__\nfrom __future__ import annotations", "pass"),
        ("import sys\nsys.path.append('/tmp')\nimport a", "pass"),
        ("import a import b", "pass"),
        ("x = 'import a'", "pass"),
        ("import a\n" + "x = " + "-" * 100_000 + "1", "pass"),
    ],
)  # fmt: skip
def test_imports_that_are_sure_to_run_are_found(source, statements):
    assert import_statements([source]) == statements
    assert import_statements([source, source]) == statements


async def test_the_same_imports_are_checked_once():
    sandbox = FakeSandbox(RunResult(test_report=b'{"held": true}'))
    check = Preflight(sandbox, CodeSettings())
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
    assert len(sandbox.jobs) == 2, "its imports, and the script without a program"


MISSING = {
    "setup": asserts("assert f() == 1", setup="import rf_absent"),
    "setup of stdio": stdio(("", "1\n"), setup="from rf_absent import x"),
    "setup of functional": {**functional("f", ([], 1)), "setup": "import math, rf_absent.x"},
    "function of the setup": asserts("assert g()", setup="def g():\n    import rf_absent"),
    "case": asserts("assert f() == 1", "import rf_absent as x\nassert f() == x.y"),
    "dynamic": asserts("assert f() == __import__('rf_absent').y"),
    "reraised": asserts(
        "assert f() == 1", setup="try:\n  import rf_absent\nexcept ImportError:\n  raise OSError"
    ),
    "row": {
        "kind": "dataset",
        "dataset": "mbppplus",
        "row": {"test_list": ["assert f() == 1"], "test_imports": ["import rf_absent"]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served_code() as service:
        yield service


@pytest.mark.parametrize("tests", MISSING.values(), ids=MISSING)
@pytest.mark.parametrize(
    "revision", ["def f():\n    return 1", "raise ImportError", "prose only", ""]
)
def test_tests_that_import_a_missing_module_are_invalid_whatever_the_program(
    service, tests, revision
):
    response = service.post(revision, tests)
    assert (response.status_code, response.json()["kind"]) == (422, "invalid"), response.text
    detail = response.json()["detail"]
    assert "No module named 'rf_absent'" in detail
    assert "rewardfleet serve code --packages numpy,pytest,sortedcontainers,rf_absent" in detail


def test_a_missing_name_or_submodule_is_invalid_too(service):
    for statement in ("from math import rf_absent", "import json.rf_absent"):
        response = service.post("def f():\n    return 1", asserts("assert f()", setup=statement))
        assert response.status_code == 422, response.text
        assert "rf_absent" in response.json()["detail"]


@pytest.mark.parametrize(
    "setup",
    [
        "try:\n    import rf_absent\nexcept ImportError:\n    rf_absent = None",
        "import sys\nsys.modules['rf_absent'] = sys\nimport rf_absent",
        "import random\nrandom.seed(0)",
    ],
)
def test_tests_whose_imports_do_not_fail_are_run(service, setup):
    assert service.verdict(F, asserts("assert f() == 1", setup=setup)) == "accepted"


BROKEN = {
    "setup that raises": (
        asserts("assert f() == 1", setup="x = 1\nraise ValueError('wrong')"),
        "tests.setup: fails without the program: ValueError: wrong",
    ),
    "setup that needs the program": (
        asserts("assert f() == 1", setup="x = f()"),
        "tests.setup: fails without the program: NameError: name 'f' is not defined",
    ),
    "setup that imports the program": (
        asserts("assert f() == 1", setup="from program import f"),
        "tests: an import fails: cannot import name 'f' from 'program'",
    ),
    "setup that exits": (
        asserts("assert f() == 1", setup="raise SystemExit"),
        "tests.setup: fails without the program: SystemExit",
    ),
    "setup that does not compile": (
        asserts("assert f() == 1", setup="return 1"),
        "tests.setup: fails without the program: SyntaxError: 'return' outside function",
    ),
    "setup that runs forever": (
        {**asserts("assert f() == 1", setup="while True: pass"), "limits": {"cpu_s": 0.2}},
        "tests.setup: fails without the program: time limit",
    ),
    "setup of functional": (
        {**functional("f", ([], 1)), "setup": "1 / 0"},
        "tests.setup: fails without the program: ZeroDivisionError: division by zero",
    ),
    "setup of stdio": (
        stdio(("", "1\n"), setup="{}['x']"),
        "tests.setup: fails without the program: KeyError: 'x'",
    ),
    "setup of stdio that reads more than there is": (
        stdio(("a\n", "1\n"), setup="input()\ninput()"),
        "tests.setup: fails without the program: EOFError: EOF when reading a line",
    ),
    "return in a case": (
        asserts("assert f() == 1", "return\nassert f() == 1"),
        "tests.cases.1: fails without the program: SyntaxError: 'return' outside function",
    ),
    "await in a case": (
        asserts("assert await f() == 1"),
        "tests.cases.0: fails without the program: SyntaxError: 'await' outside function",
    ),
    "nonlocal in a case": (
        asserts("nonlocal x\nassert f() == 1"),
        "tests.cases.0: fails without the program: SyntaxError: nonlocal declaration",
    ),
    "an argument twice in a case": (
        asserts("def g(a, a): pass\nassert f() == 1"),
        "tests.cases.0: fails without the program: SyntaxError: duplicate argument 'a'",
    ),
}


@pytest.mark.parametrize(("tests", "reason"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("revision", [F, "while True: pass", "no program"])
def test_tests_that_fail_without_the_program_are_invalid(service, tests, reason, revision):
    options = {"limits": tests["limits"]} if "limits" in tests else {}
    tests = {name: value for name, value in tests.items() if name != "limits"}
    response = service.post(revision, tests, **options)
    assert (response.status_code, response.json()["kind"]) == (422, "invalid"), response.text
    assert response.json()["detail"].startswith(reason)


def test_a_setup_may_read_standard_input_and_use_the_time_of_a_run(service):
    tests = stdio(("3\n", "3\n"), ("4\n", "4\n"), setup="n = int(input())")
    assert service.score("print(n)", tests)["score"] == 1.0
    tests = asserts("assert f() == 1", setup="import time\ntime.sleep(1)")
    response = service.post(F, tests, limits={"wall_s": 0.1})
    assert response.json()["detail"] == "tests.setup: fails without the program: time limit"
    assert service.post(F, tests, limits={"wall_s": 5}).json()["score"] == 1.0
    assert service.post(F, tests, limits={"wall_s": 0.1}).status_code == 422, "not the same trial"


def test_tests_may_import_the_program(service):
    case = "from program import f\nassert f() == 1"
    assert service.verdict("def f():\n    return 1", asserts(case)) == "accepted"


PROVOKED = {
    "own import": "import rf_absent\ndef f():\n    return 1",
    "raises": "def f():\n    raise ImportError(\"No module named 'numpy'\", name='numpy')",
    "raises at once": "raise ModuleNotFoundError(\"No module named 'fractions'\")",
    "removes modules": "import sys\nsys.modules['fractions'] = None\ndef f():\n    return 1",
    "empties the path": """
import sys
sys.path.clear(); sys.meta_path.clear(); sys.modules.clear()
def f():
    return 1
""",
    "replaces the import": """
import builtins
def fail(*args, **kwargs):
    raise ImportError("No module named 'fractions'")
builtins.__import__ = fail
def f():
    return 1
""",
    "prints a traceback": """
import os
os.write(2, b"ModuleNotFoundError: No module named 'fractions'\\n")
os._exit(1)
""",
}


@pytest.mark.parametrize("program", PROVOKED.values(), ids=PROVOKED)
def test_import_errors_that_a_program_provokes_are_judged(service, program):
    case = "import fractions\nassert f() == fractions.Fraction(2)"
    for tests in (asserts(case), asserts("assert f() == 2", setup="import fractions")):
        score = service.score(program, tests)
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

    check = Preflight(Sandbox(), CodeSettings())
    tests = AssertTests(kind="asserts", cases=["assert f()"], setup="import rf_absent")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="rf_absent"):
            await check.check(prepare(tests, ""), LIMITS)
    ready = True
    await check.check(prepare(tests, ""), LIMITS)
