"""The ORM for ms-swift, called as `compute_rewards_per_func` of ms-swift 4.6.0 does."""

import json
import math

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters.ms_swift import orm

from .conftest import ECHO, SUM, TESTS, UNREACHABLE


def score(kind: type, completions: list[str], **columns: object) -> list[float]:
    """Make the ORM with the trainer's arguments; give completions by position, rows as lists."""
    reward = kind(args=object())
    given = {"messages": [[]] * len(completions), "tools": [None] * len(completions), **columns}
    try:
        return reward(completions, trainer_state=object(), **given)
    finally:
        reward._loop.close(kind.scorer._fleet.aclose())


def test_completions_are_scored_by_the_tests_of_their_rows(code_url: str):
    kind = orm("code", code_url)
    tests = [TESTS, json.dumps(TESTS), TESTS, TESTS, TESTS]
    assert score(kind, [SUM, ECHO, "", "\0", "Hm."], tests=tests) == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert kind.__name__ == "CodeReward", "ms-swift logs the name of the class"


def test_a_column_may_have_another_name_and_others_be_fields(code_url: str):
    kind = orm("code", code_url, column="solution", columns=["mode"])
    assert score(kind, [ECHO], solution=[TESTS], mode=["all_pass"]) == [0.0]
    with pytest.raises(InvalidRequest, match="no column 'solution'"):
        score(kind, [ECHO], mode=["all_pass"])


def test_a_failure_is_raised_or_a_number_that_ms_swift_does_not_count_as_0(unused_tcp_port: int):
    dead = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(UNREACHABLE):
        score(orm("code", dead, timeout_s=0.3), [SUM], tests=[TESTS])
    kind = orm("code", dead, timeout_s=0.3, on_failure=-1.0)
    assert score(kind, [SUM], tests=[TESTS]) == [-1.0]
    with pytest.raises(ValueError, match="NaN would count as 0 in ms-swift"):
        orm("code", dead, on_failure=math.nan)
