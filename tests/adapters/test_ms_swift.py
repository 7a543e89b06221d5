"""The ORM for ms-swift, called as `compute_rewards_per_func` of ms-swift 4.6.0 does."""

import json

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters.ms_swift import orm

from .conftest import ECHO, SUM, TESTS

pytestmark = pytest.mark.usefixtures("closes")


def score(kind: type, completions: list[str], **columns: object) -> list[float]:
    """Make the ORM with the trainer's arguments; give completions by position, rows as lists."""
    reward = kind(args=object())
    given = {"messages": [[]] * len(completions), "tools": [None] * len(completions), **columns}
    return reward(completions, trainer_state=object(), **given)


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
