"""Ray Data: batches as `map_batches` gives them to an actor, and actors on a local Ray 2.60."""

import importlib.util
import json
import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters.ray_data import Records, Scorer
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import FakeJudge, serving

from .conftest import ECHO, SUM, TESTS, UNREACHABLE


class KilledOnce(Records):
    """Is killed with its actor in the middle of the second batch."""

    def __init__(self, mark: str, **options: object) -> None:
        super().__init__(**options)
        self._mark, self._batches = Path(mark), 0

    def __call__(self, batch):
        self._batches += 1
        if self._batches == 2 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def batch_of(texts: list[object], tests: object = TESTS) -> dict[str, np.ndarray]:
    """Return a batch like those of Ray Data: arrays, with objects where rows are no numbers."""
    responses = np.empty(len(texts), dtype=object)
    responses[:] = texts
    truths = np.array([json.dumps(tests)] * len(texts), dtype=object)
    return {"id": np.arange(len(texts)), "response": responses, "tests": truths}


def test_a_batch_gets_rewards_and_errors(code_url: str):
    batch = batch_of([SUM, ECHO, "", "\0"])
    scored = Scorer("code", code_url)(batch)
    assert list(scored) == ["id", "response", "tests", "reward", "reward_error"]
    assert scored["reward"].tolist() == [1.0, 0.5, 0.0, 0.0]
    assert scored["reward"].dtype == np.float64
    assert scored["reward_error"].tolist() == [None] * 4
    assert list(batch) == ["id", "response", "tests"]
    empty = Scorer("code", code_url, reward="score")(batch_of([]))
    assert len(empty["score"]) == len(empty["score_error"]) == 0


def test_json_within_objects_is_read_by_the_type_of_a_table(code_url: str):
    pa = pytest.importorskip("pyarrow", "21")
    cases = pa.array(['[{"a": 1}]', "[1, 2]"], pa.json_())
    inputs = pa.ListArray.from_arrays([0, 1, 2], cases)
    outputs, names = pa.array([["1"], ["2"]]), pa.array(["f", "f"])
    tests = pa.StructArray.from_arrays([inputs, outputs, names], ["inputs", "outputs", "fn_name"])
    program = "def f(x, y=0):\n    return str(len(x) if isinstance(x, dict) else y)"
    table = pa.table({"response": [program] * 2, "tests": tests})
    assert Scorer("code", code_url)(table)["reward"].to_pylist() == [1.0, 1.0]
    assert Records("code", code_url)(table)["score"].to_pylist() == [1.0, 1.0]
    batch = {each: np.array(table[each].to_pylist(), object) for each in table.column_names}
    scored = Scorer("code", code_url)(batch)
    assert np.isnan(scored["reward"]).all() and "batch_format" in scored["reward_error"][0]
    assert "batch_format" in Records("code", code_url)(batch)["error_detail"][0].as_py()


def test_an_invalid_row_does_not_end_the_job(code_url: str):
    batch = batch_of([SUM, SUM])
    batch["tests"][0] = json.dumps({"kind": "stdio", "cases": []})
    scored = Scorer("code", code_url)(batch)
    assert math.isnan(scored["reward"][0]) and scored["reward"][1] == 1.0
    assert "cases" in scored["reward_error"][0] and scored["reward_error"][1] is None
    with pytest.raises(InvalidRequest, match="cases"):
        Scorer("code", code_url, on_failure="raise")(batch)


def test_what_is_no_response_has_no_reward_and_a_missing_column_ends_the_job(code_url: str):
    scored = Scorer("code", code_url)(batch_of([SUM, "", 5.0, [SUM], None, math.nan]))
    assert scored["reward"].tolist()[:2] == [1.0, 0.0] and np.isnan(scored["reward"][2:]).all()
    reasons = ["a completion is a text, messages"] * 2 + ["no_answer"] * 2
    for reason, error in zip(reasons, scored["reward_error"][2:], strict=True):
        assert reason in error
    with pytest.raises(InvalidRequest, match="no column 'checks'; it has: id, response, tests"):
        Scorer("code", code_url, column="checks")(batch_of([SUM]))
    with pytest.raises(InvalidRequest, match="no column 'answer'"):
        Scorer("code", code_url, text="answer")(batch_of([SUM]))


@pytest.mark.slow
def test_without_a_service_rewards_are_missing(lost_url: str, monkeypatch):
    scored = Scorer("code", lost_url, timeout_s=1)(batch_of([SUM, ECHO]))
    assert np.isnan(scored["reward"]).all()
    assert all("cannot be reached" in error for error in scored["reward_error"])
    with pytest.raises(UNREACHABLE):
        Scorer("code", lost_url, timeout_s=1, on_failure="raise")(batch_of([SUM]))


def test_clips_are_scored(serve):
    service = serve(FakeJudge())
    clips = np.zeros((2, 4, 32, 32, 3), np.uint8)
    tasks = np.array(["put the bowl on the plate", ""], dtype=object)
    scored = Scorer("video", str(service.base_url))({"clip": clips, "task": tasks})
    assert scored["reward"][0] in (0.0, 1.0)
    assert math.isnan(scored["reward"][1]) and "task_text" in scored["reward_error"][1]


def test_records_are_those_of_the_command(code_url: str):
    batch = batch_of([SUM, ECHO, None, 5.0, SUM])
    batch["tests"][4] = {"inputs": [[{"a": 1, "b": None}]], "outputs": [1], "fn_name": "f"}
    options = {"columns": {"id_column": "id"}, "fields": {"mode": "all_pass"}}
    table = Records("code", code_url, **options)(batch)
    assert table["score"].to_pylist() == [1.0, 0.0, None, None, None]
    assert table["status"].to_pylist() == ["ok", "ok", "abstained", "error", "error"]
    assert table["uid"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert len(set(table["id"].to_pylist()[:4])) == 4
    assert not {"row", "place"} & set(table.column_names)


#: Sizes that are said, groups of a batch, and its scores, or why it is refused.
GROUPS = [
    (2, "abab", [0.5, 0.5, -0.5, -0.5]),
    (2, "aba", "1 of the group 'b', group_size is 2"),
    (4, "aa", "2 of the group 'a', group_size is 4"),
    ("map_groups", "aaaa", [0.5, 0.5, -0.5, -0.5]),
    ("map_groups", "aab", "1 of the group 'b', group_size is map_groups"),
]


def test_a_part_of_a_group_is_refused():
    with serving(create_episode_app(EpisodeSettings())) as url:
        for group_size, groups, found in GROUPS:
            batch = {"group": np.array([*groups], object), "success": np.arange(len(groups)) < 2}
            options = {"fields": {"normalize": "group_mean"}, "group_size": group_size}
            records = Records("episode", url, **options)
            if isinstance(found, list):
                assert records(batch)["score"].to_pylist() == found
            else:
                with pytest.raises(ValueError, match=rf"{found}.*groupby\(\"group\"\).map_groups"):
                    records(batch)
    for service, group_size in (("episode", None), ("code", 8)):
        with pytest.raises(ValueError, match="group_size"):
            Records(service, "http://127.0.0.1:1", group_size=group_size)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
@pytest.mark.filterwarnings("ignore")  # of Ray and what it imports
def test_a_pool_of_actors_scores_a_dataset(code_url: str, tmp_path: Path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("pandas")
    data = pytest.importorskip("ray.data")
    # Its workers would look for this module in the package `tests` that verl installs.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    code = {"service": "code", "url": code_url}
    named = {"columns": {"id_column": "id"}, "mark": str(tmp_path / "killed")}

    def given(options: dict[str, object], actors: int) -> dict[str, object]:
        return {"fn_constructor_kwargs": options, "concurrency": actors, "num_cpus": 0.5}

    try:
        rows = [
            {"id": index, "response": (SUM, ECHO, "")[index % 3], "tests": json.dumps(TESTS)}
            for index in range(24)
        ]
        scored = data.from_items(rows).map_batches(Scorer, batch_size=8, **given(code, 2))
        rewards = {row["id"]: row["reward"] for row in scored.take_all()}
        options = given(code | named, 1)
        killed = data.from_items(rows).map_batches(KilledOnce, batch_size=4, **options)
        records = {row["uid"]: row["score"] for row in killed.take_all()}
        episodes = [{"uid": f"{i}", "group": f"g{i % 5}", "success": i < 5} for i in range(20)]
        groups = data.from_items(episodes).groupby("group")
        with serving(create_episode_app(EpisodeSettings())) as url:
            options = {"service": "episode", "url": url, "group_size": "map_groups"}
            options["fields"] = {"normalize": "group_mean"}
            scored = groups.map_groups(Records, **given(options, 1))
            advantages = {int(row["uid"]): row["score"] for row in scored.take_all()}
    finally:
        ray.shutdown()
    assert [rewards[index] for index in range(24)] == [1.0, 0.5, 0.0] * 8
    assert (tmp_path / "killed").exists()
    assert [records[str(index)] for index in range(24)] == [1.0, 0.5, 0.0] * 8
    assert [advantages[index] for index in range(20)] == [0.75] * 5 + [-0.25] * 15
