"""No data of a submission reaches a program of another one, not even in freed memory."""

import contextlib
import json
import secrets
from collections.abc import Callable

import pytest

from .conftest import LEVELS, LIMITS, asserts, functional, rows, served_code, sources, stdio

pytestmark = pytest.mark.slow

#: The first one prints each text in its memory that begins with a mark, which it does not contain
#: itself. The second one prints digests of what a program finds of its process when it starts, and
#: the address of `sys`. The last one changes what it can of its process.
THIEF, STATE, VANDAL = sources("leaks").values()
LONG_LIMITS = {**LIMITS, "cpu_s": 20, "wall_s": 40}


@pytest.fixture(scope="module", params=LEVELS)
def service(request: pytest.FixtureRequest):
    """A service with one jail that is used, whatever the programs do."""
    with served_code(request.param, workers=1) as service:
        yield service


def thief(mark: str) -> str:
    return f"MARK = {[ord(each) for each in mark]}\n{THIEF}"


def test_a_thief_finds_what_is_in_its_own_memory(service):
    """So the other tests can fail."""
    mark = f"rf{secrets.token_hex(3)}x"
    program = f"x = '{mark}' + '{secrets.token_hex(8)}'\n{thief(mark)}"
    score = service.score(program, stdio(("", "nothing")), limits=LONG_LIMITS)
    assert mark in score["verdicts"][0]["stdout"]


def submissions(item: Callable[[], str]) -> list[tuple[str, dict]]:
    """Return programs and tests that have marked data in one place each."""
    found = []
    for row in rows("marked").values():
        first, *rest = json.dumps([row["program"], row["tests"]]).split("MARK")
        found.append(tuple(json.loads(first + "".join(item() + each for each in rest))))
    return found


def test_nothing_of_earlier_submissions_is_in_the_memory_of_a_program(service):
    mark = f"rf{secrets.token_hex(3)}x"
    for _ in range(2):
        for program, tests in submissions(lambda: mark + secrets.token_hex(8)):
            for mode in ("pass_rate", "all_pass"):
                with contextlib.suppress(KeyError):
                    service.score(f"{program}\n# {secrets.token_hex(8)}", tests, mode=mode)
    tests = stdio(("", "nothing"))
    assert service.verdict(thief(mark), tests, limits=LONG_LIMITS) == "accepted"


def test_nothing_of_other_tests_is_in_the_memory_of_a_program(service):
    """Neither their inputs nor their expected outputs, in any order of the tests."""
    mark = f"rf{secrets.token_hex(3)}x"

    def item() -> str:
        return mark + secrets.token_hex(8)

    cases = [(item(), item()) for _ in range(3)]
    program = f"import sys\nif 0: input()\n{thief(mark)}"
    score = service.score(program, stdio(*cases), limits=LONG_LIMITS)
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
        score = service.score(program, tests, limits=LONG_LIMITS)
        for verdict in score["verdicts"]:
            assert "nothing" in verdict["stdout"] and mark not in verdict["stdout"], verdict


def test_all_runs_start_in_the_same_state(service):
    """Whatever ran before: addresses, hashes, descriptors, and random numbers are the same."""
    twice = stdio(("", ""), ("", ""))  # the first run compiles the program, the second one loads it
    others = [("x = 1", twice), *submissions(lambda: secrets.token_hex(50))]
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
