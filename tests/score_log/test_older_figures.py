"""Figures of scores in logs and outputs: details, which older ones have as components."""

import json

import pytest

from rewardfleet.score_log import Scored
from rewardfleet.score_log.reading import Filters, open_log, query, select
from rewardfleet.score_log.replaying import select_records
from rewardfleet.story import score_of, story_of
from rewardfleet.tools import tools_request
from rewardfleet_server.look.details import details_of

from .test_segments import written

PARTS = {"format": 1.0, "correctness": 3.0}
OTHER = {"task": 4.0, "cost": 2.0, "lambda": 0.75, "violation": 1.5}
FIGURES = {
    "now": {"components": {**PARTS, "tool_cost": -1.5}, "details": OTHER},
    "before": {"components": {**PARTS, **OTHER}},
}
TRUTH = "<response>a</response>"


@pytest.mark.parametrize("when", FIGURES)
def test_they_are_found(tmp_path, when: str):
    fields = {"score": 2.5, "status": "ok", "backend": "tools", "calls": 2, **FIGURES[when]}
    written(tmp_path, Scored("tools", 1.0, tools_request(TRUTH, TRUTH), fields))
    with open_log([tmp_path]) as connection:
        [record] = select(connection, Filters())
        select_records(connection, Filters())
        assert query(connection, "SELECT price FROM recorded") == [(0.75,)]
    story = "\n".join(story_of("tools", {}, score_of(record)))
    assert "format 1 + correctness 3 + length 0 = task 4" in story
    assert "lambda 0.75 x cost 2" in story and "the budget is 0.5 per answer" in story
    shown = details_of(record)
    assert shown["figures"] == {**FIGURES[when]["components"], **OTHER}
    assert json.loads(shown["texts"]["details"])["calls"] == 2
