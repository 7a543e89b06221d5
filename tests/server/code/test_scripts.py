"""Tests are called the way their form is called, and tests that prove nothing are refused."""

import ast

import pytest

from rewardfleet_server.code.sandboxes.jail.guest import scripts

from .conftest import Service, asserts

pytestmark = [pytest.mark.slow, pytest.mark.protocol]

RIGHT, WRONG = "def f(x):\n    return x * x", "def f(x):\n    return 9"
ASYNC = "async def f(x):\n    return x * x"
CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(4) == 16\n"
UNITTEST = """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        self.assertEqual(f(3), 9)
        with self.assertRaises(TypeError):
            f(None)
    def test_b(self):
        self.assertEqual(f(4), 16)
    @unittest.skip("not now")
    def test_c(self):
        self.fail()
"""
#: Scripts, and how many of their checks hold for the right program. The wrong one fails one.
FORMS = {
    "check, called by nothing": (CHECK, 2),
    "check, called by the script": (CHECK + "check(f)", 2),
    "functions of pytest": ("def test_a(): assert f(3) == 9\ndef test_b(): assert f(4) == 16", 2),
    "a class of pytest": (
        "class TestF:\n  def setup_method(self, method): self.x = 4\n"
        "  def test_a(self): assert f(self.x) == 16",
        1,
    ),
    "pytest": (
        "import pytest\n@pytest.mark.parametrize('x, y', [(3, 9), pytest.param(4, 16)])\n"
        "def test_a(x, y): assert f(x) == pytest.approx(y)\n"
        "def test_b():\n  with pytest.raises(TypeError): f(None)",
        3,
    ),
    "unittest": (UNITTEST, 3),
    "unittest.main": (UNITTEST + "if __name__ == '__main__':\n    unittest.main()", 3),
    "a runner that only reports": (
        UNITTEST + "unittest.TextTestRunner().run(\n"
        "    unittest.defaultTestLoader.loadTestsFromTestCase(T))",
        3,
    ),
    "a coroutine": ("async def test_a():\n    assert f(4) == 16", 1),
    "below a guard": ("if __name__ == '__main__':\n    assert f(4) == 16", 1),
    "a runner that swallows failures": (
        "def test_a(): assert f(3) == 9\ndef test_b(): assert f(4) == 16\n"
        "for each in (test_a, test_b):\n  try: each()\n"
        "  except AssertionError as e: print('failed', e)",
        2,
    ),
    "an assert that is swallowed": (
        "try:\n  assert f(3) == 9\n  assert f(4) == 16\nexcept AssertionError:\n  print('no')",
        2,
    ),
    "exceptions that are expected": (
        "try:\n    f(None)\n    assert False\nexcept TypeError:\n    pass\nassert f(4) == 16",
        2,
    ),
    "a condition that raises": ("if f(4) != 16:\n    raise ValueError('wrong')\nassert f(3)", 2),
    "the program as a module": ("from solution import f as g\nassert g(4) == 16 and g(3)", 1),
    "a function of the setup": ("expect(f(4), 16)", 1),
}  # fmt: skip
SETUP = "def expect(got, wanted):\n    assert got == wanted"


@pytest.mark.parametrize(("script", "count"), FORMS.values(), ids=FORMS)
def test_a_form_of_tests_is_called(level_service: Service, script: str, count: int):
    tests = asserts(script, entry_point="f", setup=SETUP)
    score = level_service.score(RIGHT, tests)
    (verdict,) = score["verdicts"]
    found = verdict["verdict"], verdict["verdict_by"], verdict["checks"], score["suspicions"]
    assert found == ("accepted", "service", count, []), verdict
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


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (CHECK, "its asserts are in `check`, which nothing calls; give `entry_point`"),
        ("def verify():\n    assert f(3) == 9", "its asserts are in `verify`, which nothing calls"),
        ("def test_a():\n    yield\n    assert f(3) == 9", "which nothing calls"),
        ("import unittest\nclass T(unittest.TestCase):\n  @unittest.skip('x')\n"
         "  def test_a(self): self.assertEqual(f(3), 9)", "none of its checks is evaluated"),
        ("try:\n    assert f(3) == 9\nexcept Exception:\n    pass", "none of its checks"),
        ("import unittest\nclass T(unittest.TestCase):\n"
         "  def test_a(self):\n    with self.assertRaises(Exception): f(3)",
         "it passes without a program"),
        ("assert 1 + 1 == 2", "it passes without a program"),
        ("assert True or f(3)", "it passes without a program"),
        ("for x in []:\n    assert f(x)", "none of its checks is evaluated"),
        ("def assert_equal(x, y): return x == y\nassert_equal(f(3), 9)", "it has no check"),
        ("def test_a(tmp_path):\n    assert f(3) == 9", "`test_a` needs 'tmp_path'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("program", [RIGHT, "x = 1"])
def test_tests_that_prove_nothing_are_invalid(level_service, program, script, reason):
    response = level_service.post(program, asserts(script))
    assert (response.status_code, response.json()["kind"]) == (422, "invalid"), response.text
    assert reason in response.json()["detail"]


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


def counted(source: str, **variables: object) -> int:
    script = scripts.TestScript({"__builtins__": __builtins__, **variables}, None)
    script.run(ast.parse(source))
    return script.checks


class Mark:
    """What a decorator of `pytest.mark` leaves on a function."""

    def __init__(self, name: str, *args: object) -> None:
        self.name, self.args, self.kwargs = name, args, {}

    def __call__(self, function):
        function.pytestmark = [*getattr(function, "pytestmark", ()), self]
        return function


def test_a_test_is_called_once_for_each_set_of_parameters():
    script = """
@mark("parametrize", "a, b", [(1, 2), (2, 3)])
@mark("parametrize", "c", [1, 2, 3])
def test_sum(a, b, c):
    assert a + 1 == b and c
@mark("skip")
def test_skipped(): assert 0
class TestOne:
    @mark("parametrize", ["x"], [[1], [2]])
    def test_x(self, x): assert x
"""
    assert counted(script, mark=Mark) == 8


def test_a_deeply_nested_expression_is_counted_as_well():
    assert counted("x = 1\nassert " + "-" * 1500 + "x") == 1
