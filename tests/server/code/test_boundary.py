"""Asserts are evaluated in a process of their own, which the program cannot reach.

The programs are in `tests/data/code/boundary.jsonl`.
"""

import pytest

from .conftest import SHORT_LIMITS, Service, asserts, rows, sample

pytestmark = [pytest.mark.slow, pytest.mark.protocol]

TREE = """
from math import *
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
    def __eq__(self, other):
        return isinstance(other, TreeNode) and (
            (self.val, self.left, self.right) == (other.val, other.left, other.right))
def build(*values):
    return TreeNode(values[0], *(build(*v) if v else None for v in values[1:]))
def to_list(node):
    return node and [node.val, to_list(node.left), to_list(node.right)]
"""


@pytest.fixture(scope="module")
def service(level_service: Service) -> Service:
    return level_service


#: Rows with the setup of their tests, whose classes are on both sides.
OUTSIDE = {
    **rows("boundary", "outside"),
    **{name: {**row, "setup": TREE} for name, row in rows("boundary", "with setup").items()},
}


@pytest.mark.parametrize("row", sample(OUTSIDE))
def test_a_correct_program_is_accepted_by_the_process_of_the_tests(service: Service, row):
    check_decided_outside(service, row, row.get("setup", ""))


def check_decided_outside(service: Service, row: dict[str, str], setup: str) -> None:
    score = service.score(row["program"], asserts(row["case"], setup=setup, strict=True))
    (verdict,) = score["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "service"), verdict
    assert score["suspicions"] == []


@pytest.mark.parametrize("row", sample(rows("boundary", "inside")))
def test_what_the_program_decides_is_reported(service: Service, row):
    program, case = row["program"], row["case"]
    score = service.score(program, asserts(case, setup="log = []"))
    (verdict,) = score["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "jail"), verdict
    assert score["suspicions"][0].startswith("test 1: decided by ")
    response = service.post(program, asserts("assert 1", case, strict=True, setup="log = []"))
    if response.status_code == 200:
        assert response.json()["verdicts"][1]["verdict"] in {"wrong_answer", "runtime_error"}
    else:
        assert response.status_code == 422
        assert response.json()["detail"].startswith("tests.cases.1: it looks into the program's")


#: Cases that no program can pass without the right value.
CASES = [row["case"] for row in rows("boundary", "only right values pass").values()]
CASES_SETUP = """
import math as m
from math import isclose
class Node:
    def __init__(self, v): self.v = v
    def equals(self, other): return self.v == other.v
def run(x): return f(x)
"""
#: Programs that return a wrong value, and tamper with what decides.
TAMPERING = rows("boundary", "tampering")
FORGERIES = {
    **rows("boundary", "forgeries"),
    "a large integer": {"sent": [{"result": ["int", "f" * 10_000_000]}]},
}
#: What a program sends instead of its replies.
FORGED = """
import sys
boundary = sys.modules["rewardfleet_guest.boundary"]
class Forger:
    def forge(self, message):
        for forged in FORGED:
            self.send(forged)
boundary.ProgramSide.answer = Forger.forge
def f(x): return 0
"""


def check_rejected(service: Service, program: str, by: set[str], *cases: str, **fields: object):
    """Check that no case is accepted by a decision of one of these."""
    tests = asserts(*cases, setup=CASES_SETUP, **fields)
    score = service.score(program, tests, limits=SHORT_LIMITS)
    for case, verdict in zip(cases, score["verdicts"], strict=True):
        is_accepted = verdict["verdict"] == "accepted" and verdict["verdict_by"] in by
        assert not is_accepted, (case, verdict)


@pytest.mark.parametrize("row", [*TAMPERING.values()][::9], ids=[*TAMPERING][::9])
def test_no_program_without_the_right_value_passes(service: Service, row):
    """With `strict`. The next test tries all of them."""
    check_rejected(service, row["program"], {"service", "jail"}, *CASES, strict=True)


@pytest.mark.parametrize("row", sample(TAMPERING, 3))
def test_nothing_is_accepted_as_decided_outside(service: Service, row):
    """Without `strict`, a class of the program may decide, which is reported."""
    check_rejected(service, row["program"], {"service"}, *CASES)


@pytest.mark.parametrize("row", sample(FORGERIES, 3))
def test_what_a_program_sends_instead_of_its_replies_is_no_right_value(service: Service, row):
    program = f"FORGED = {row['sent']!r}\n{FORGED}"
    check_rejected(service, program, {"service", "jail"}, *CASES[:3])


#: Sends a request while a test waits for it: `H` is a function of the test.
REQUESTING = """
import sys
boundary = sys.modules["rewardfleet_guest.boundary"]
side = sys._getframe(1).f_locals["side"]
def f(h, values):
    handle = object.__getattribute__(h, "_p_handle")
    target, args, kwargs = REQUEST.get("call", [None, [], []])
    args = [["yours", handle] if arg == "H" else arg for arg in args]
    reply = side.exchange({**REQUEST, **({"call": [target, args, kwargs]} if target else {})})
    return str(reply)
"""


@pytest.mark.parametrize("row", sample(rows("boundary", "requests")))
def test_a_program_can_only_call_what_a_test_passes_to_it(service: Service, row):
    case = (
        "import sys\nsecret = 10**20 + 5\nout = sys.stdout\n"
        "got = f(lambda: secret, [1])\nassert got.startswith(\"{'raised'\"), got\n"
        "assert str(secret) not in got and sys.stdout is out"
    )
    program = f"REQUEST = {row['sent']!r}\n{REQUESTING}"
    (verdict,) = service.score(program, asserts(case, strict=True))["verdicts"]
    if verdict["verdict"] != "accepted":  # or the tests ended at the request
        assert (verdict["verdict"], verdict["stderr"]) == ("exited_early", ""), verdict


def test_a_test_that_a_program_makes_wait_ends(service: Service):
    tests, limits = asserts("assert f(1) in (1,)"), {"wall_s": 1, "cpu_s": 1}
    for program in ("def f(x):\n  while True: pass", "import time\ndef f(x): time.sleep(99)"):
        assert service.verdict(program, tests, limits=limits) == "time_limit"
    # The tests end, and the program goes on.
    program = """
import os, threading
def f(x):
    def loop():
        while True: pass
    threading.Thread(target=loop).start()
    return 1
"""
    assert service.verdict(program, tests) == "accepted"


@pytest.mark.parametrize("row", sample(rows("boundary", "wrong")))
def test_a_wrong_program_is_rejected(service: Service, row):
    """It would pass if the tests overlooked the boundary."""
    assert service.verdict(row["program"], asserts(row["case"], setup="log = []")) != "accepted"


def test_only_what_crossed_is_evaluated_again(service: Service):
    """So a wrong value is a wrong answer, whatever else the program does."""
    program = "import math\nmath.isclose = lambda *_, **__: True\ndef f(x): return 0"
    cases = (
        "import math\nassert math.isclose(f(1), 2)",
        "assert f(1) is not None and f(1) == 1 + 1",
    )
    score = service.score(program, asserts(*cases))
    assert [each["verdict"] for each in score["verdicts"]] == ["wrong_answer"] * 2
    assert {each["verdict_by"] for each in score["verdicts"]} == {"service"}


def test_several_asserts_of_a_run_share_its_state(service: Service):
    program = "n = 0\ndef f():\n  global n\n  n += 1\n  return n"
    cases = ("assert f() == 1", "assert f() in (2,)", "assert f() == 4 - 1", "x = n\nassert x == 3")
    score = service.score(program, asserts(*cases, "assert x + f() == 7", single_run=True))
    assert [each["verdict"] for each in score["verdicts"]] == ["accepted"] * 5
    assert {each["verdict_by"] for each in score["verdicts"]} == {"service"}


def test_a_tolerance_applies_to_an_expression_that_the_tests_evaluate(service: Service):
    tests = asserts("assert round(f(1), 9) == 0.3333", tolerance=1e-3)
    assert service.verdict("def f(x): return x / 3", tests) == "accepted"
    assert service.verdict("def f(x): return x / 2", tests) == "wrong_answer"
