"""The overall judgment of a critique, and its effect on scores, the latter over real HTTP."""

import pytest

from rewardfleet.text.judgment import overall_judgment
from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.testing import FakeSandbox

from ...conftest import table
from ...measure import CpuStopwatch
from .conftest import Service, asserts, rows, sample, served_code, stdio, verdicts


@pytest.mark.parametrize("row", sample(rows("judgments")))
def test_overall_judgment(row):
    assert overall_judgment(row["critique"]) == row["judgment"]


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("part", table("parts_of_critiques"))
def test_it_takes_linear_time(part: str):
    watch = CpuStopwatch()
    overall_judgment(part * (1_000_000 // len(part)))
    assert watch.seconds < 5


# Over HTTP

RIGHT, WRONG = "print(input())", "print(1)"
TESTS = stdio(("1", "1"), ("2", "2"))
CRITIQUES = {"correct": "Overall judgment: Correct", "incorrect": "Overall judgment: Incorrect"}


def test_a_request_without_a_critique_is_scored_by_its_tests_only(service: Service):
    score = service.score(f"Sure:\n```python\n{RIGHT}\n```", TESTS)
    assert (score["score"], score["critique_valid"], score["judgment"]) == (1.0, None, None)
    assert score["code"] == f"{RIGHT}\n"
    assert score["components"] == {"pass_rate": 1.0}


def test_a_valid_critique_reports_its_judgment(service: Service):
    score = service.score(RIGHT, TESTS, critique=CRITIQUES["incorrect"])
    assert (score["score"], score["critique_valid"]) == (1.0, True)
    assert score["judgment"] == "incorrect"
    assert "judgment_correct" not in score["details"]


@pytest.mark.parametrize("critique", ["", "Fine.", "Overall judgment: Correct/Incorrect"])
def test_a_critique_without_a_judgment_scores_0_and_nothing_runs(critique: str):
    sandbox = FakeSandbox()
    with served_code(sandbox=sandbox) as service:
        score = service.score(RIGHT, TESTS, critique=critique, original_program=WRONG)
    assert (score["score"], score["status"], score["pass_rate"]) == (0.0, "ok", None)
    assert (score["critique_valid"], score["judgment"], score["code"]) == (False, None, RIGHT)
    assert verdicts(score) == ["skipped"] * 2
    assert sandbox.jobs == []


def test_invalid_tests_are_an_error_even_if_the_critique_is_invalid(service: Service):
    assert service.post(RIGHT, asserts("f(1)"), critique="").status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judgment", "original", "judgment_correct"), table("judgments_of_originals")
)
def test_running_the_original_program_determines_whether_the_judgment_is_right(
    service: Service, judgment: str, original: str, judgment_correct: float
):
    fields = {"critique": CRITIQUES[judgment], "original_program": original}
    score = service.score(RIGHT, TESTS, limits={"cpu_s": 1.5, "wall_s": 10}, **fields)
    assert (score["score"], score["details"]["judgment_correct"]) == (1.0, judgment_correct)


@pytest.mark.parametrize("passed", [True, False])
def test_an_original_program_that_is_known_to_pass_or_fail_is_not_run(passed: bool):
    sandbox = FakeSandbox()
    with served_code(sandbox=sandbox) as service:
        fields = {"critique": CRITIQUES["correct"], "original_program": WRONG}
        score = service.score(RIGHT, TESTS, original_passed=passed, **fields)
    assert score["details"]["judgment_correct"] == float(passed)
    assert [job.program for job in sandbox.jobs] == [RIGHT]


def test_an_original_program_that_cannot_be_run_is_an_internal_failure():
    """The request fails and can be retried; the judgment is not counted as wrong."""

    class SecondJobFails(FakeSandbox):
        async def run(self, job, on_result, timing):
            if self.jobs:
                raise Unavailable("no jail")
            await super().run(job, on_result, timing)

    with served_code(sandbox=SecondJobFails()) as service:
        response = service.post(RIGHT, TESTS, critique=CRITIQUES["correct"], original_program=RIGHT)
    assert response.status_code == 503
    assert response.json()["retryable"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "takes_time", ["while time.process_time() < 0.25: pass", "time.sleep(0.25)"]
)
@pytest.mark.parametrize(("tests", "known"), [(24, False), (1, True)])
def test_the_original_program_has_the_time_that_the_revision_left(
    tests: int, known: bool, takes_time: str
):
    """If that is up before a test fails, it is unknown whether the judgment is right."""
    with served_code(workers=1, max_submission_s=1) as service:
        original = f"import time\n{takes_time}"
        fields = {"critique": CRITIQUES["correct"], "original_program": original}
        score = service.score("pass", stdio(*[("", "")] * tests), **fields)
    assert score["score"] == 1.0
    assert ("judgment_correct" in score["details"]) is known
