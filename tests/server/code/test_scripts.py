"""Tests are called the way their form is called, and tests that prove nothing are refused.

The tests are in `tests/data/code/scripts.jsonl`.
"""

import pytest

from .conftest import Service, asserts, rows, sample

pytestmark = [pytest.mark.slow, pytest.mark.protocol]

RIGHT, WRONG = "def f(x):\n    return x * x", "def f(x):\n    return 9"
ASYNC = "async def f(x):\n    return x * x"
CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(4) == 16\n"
SETUP = "def expect(got, wanted):\n    assert got == wanted"


@pytest.mark.parametrize("row", sample(rows("scripts", "forms")))
def test_a_form_of_tests_is_called(level_service: Service, row):
    """So many of its checks hold for the right program. The wrong one fails one."""
    tests = asserts(row["script"], entry_point="f", setup=SETUP)
    score = level_service.score(RIGHT, tests)
    (verdict,) = score["verdicts"]
    found = verdict["verdict"], verdict["verdict_by"], verdict["checks"], score["suspicions"]
    assert found == ("accepted", "service", row["checks"], []), verdict
    for program in (WRONG, "x = 1", "", "def f(x): raise SystemExit(0)"):
        assert level_service.score(program, tests)["score"] == 0, program


def test_an_entry_point_may_be_named_like_a_method_of_a_built_in_type(level_service: Service):
    entry = "Solution().partition"
    called = CHECK.replace("candidate(", f"{entry}(")
    for program, score in ((RIGHT, 1), (WRONG, 0)):
        method = program.replace("f(x)", "partition(self, x)").replace("\n", "\n    ")
        scripts = ((CHECK, entry, "service"), (called, entry, "jail"))
        for script, given, by in (*scripts, (f"{CHECK}\ncheck({entry})", "", "jail")):
            tests = asserts(script, entry_point=given)
            found = level_service.score(f"class Solution:\n    {method}", tests)
            assert found["score"] == score
            assert found["verdicts"][0]["verdict_by"] == by


def test_a_coroutine_of_the_program_is_awaited(level_service: Service):
    script = "async def test_a():\n    assert await f(4) == 16"
    assert level_service.score(ASYNC, asserts(script))["score"] == 1
    assert level_service.score(ASYNC.replace("* x", "+ x"), asserts(script))["score"] == 0


@pytest.mark.parametrize("row", sample(rows("scripts", "unproven")))
@pytest.mark.parametrize("program", [RIGHT, "x = 1"])
def test_tests_that_prove_nothing_are_invalid(level_service: Service, program: str, row):
    response = level_service.post(program, asserts(row["script"]))
    assert (response.status_code, response.json()["kind"]) == (422, "invalid"), response.text
    assert row["reason"] in response.json()["detail"]


def test_cases_that_pass_without_a_program_do_not_count(level_service: Service):
    tests = asserts("assert 1 < 2", "assert f(3) == 9", "assert f(4) == 16", "assert len('a')")
    for program, rate, mode in ((WRONG, 0.5, "pass_rate"), (RIGHT, 1, "all_pass")):
        score = level_service.score(program, tests, mode=mode)
        assert (score["score"], score["pass_rate"]) == (rate, rate)
        assert [each["verdict"] == "left_out" for each in score["verdicts"]] == [1, 0, 0, 1]
        assert score["left_out"] == [
            "test 1: it passes without a program",
            "test 4: it passes without a program",
        ]


@pytest.mark.parametrize(
    ("program", "script"),
    [
        ("def f(): return []", "for each in f():\n    assert each > 0"),
        ("def f(): raise SystemExit(0)", "try:\n    f()\nfinally:\n    assert f() == 1"),
    ],
)
def test_a_program_that_no_check_has_seen_is_not_accepted(level_service, program, script):
    score = level_service.score(program, asserts(script))
    assert (score["score"], score["verdicts"][0]["checks"]) == (0, 0)
