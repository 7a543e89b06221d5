"""`compute_score` as verl calls it: by path, by keyword, sync and async, in forked workers."""

import asyncio
import importlib.util
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from rewardfleet import Abstained, InvalidRequest
from rewardfleet.adapters import verl
from rewardfleet.adapters._rows import MissingReward, RowReward
from rewardfleet.adapters.verl import (
    compute_score,
    compute_score_async,
    compute_score_prime,
    compute_scores,
)
from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.testing import FakeJudge

from .conftest import ECHO, SUM, TESTS, UNREACHABLE

pytestmark = pytest.mark.slow

VIDEO_CAUSES = {f"reward/cause/{each}": 0.0 for each in VideoCause}
MARKS = {"reward/failed": 0.0, "reward/abstained": 0.0, "reward/cached": 0.0}


async def sync(*given: object, **kwargs: object) -> dict[str, float]:
    return compute_score(*given, **kwargs)


async def close_all(scorers: dict[str, RowReward]) -> None:
    for scorer in scorers.values():
        await scorer.fleet.aclose()


@pytest.fixture(autouse=True)
async def _own_scorers():
    verl._scorers.clear()
    yield
    await close_all(verl._scorers)  # in this event loop
    await asyncio.to_thread(verl._loop.close, close_all(verl._scorers))


both = pytest.mark.parametrize("score", [sync, compute_score_async])


@both
async def test_a_score_is_the_pass_rate(score, code_url: str):
    for text, tests, extra, rate in ((SUM, TESTS, None, 1.0), (ECHO, json.dumps(TESTS), {}, 0.5)):
        result = await score("code", text, tests, extra, url=[code_url])
        assert result["score"] == result["reward/pass_rate"] == rate
        assert result["reward/failed"] == 0.0
    result = await score("code", ECHO, TESTS, {"mode": "all_pass"}, url=code_url)
    assert result["score"] == 0.0


async def test_the_step_is_one_after_that_of_the_weights(code_url: str, tmp_path: Path):
    """verl 0.9.1 adds the fields of its agent loop to `extra_info`; None before the first sync."""
    extras = [{"max_global_steps": 7, "turn_scores": []}, {"max_global_steps": None}, {"step": 5}]
    for extra in extras:
        await compute_score_async(
            "code", SUM, TESTS, extra, url=code_url, score_log=str(tmp_path / "log")
        )
    await close_all(verl._scorers)  # writes the log
    segments = [each.read_text() for each in (tmp_path / "log").glob("*.jsonl")]
    lines = "".join(segments).splitlines()
    assert sorted(str(json.loads(line)["step"]) for line in lines) == ["8", "None", "None"]


@both
async def test_a_critique_is_scored_by_its_revision_and_its_judgment_is_reported(
    score, code_url: str
):
    extra = {"revision": SUM, "original_passed": True}
    names = ("score", "critique_valid", "details/judgment_correct", "failed")
    for critique, *expected in (
        ("Sum them.\nOverall judgment: Incorrect", 1.0, 1.0, 0.0, 0.0),
        ("Nice.", 0.0, 0.0, None, 0.0),
    ):
        result = await score("critic", critique, TESTS, extra, url=code_url)
        assert [result["score"], *(result[f"reward/{name}"] for name in names[1:])] == expected
    assert extra == {"revision": SUM, "original_passed": True}, "samples may share it"
    assert (await score("code", SUM, TESTS, {"critique": "Nice."}, url=code_url))["score"] == 0.0


@both
async def test_a_failure_is_raised_or_replaced_and_never_silently_0(
    score, lost_url: str, code_url: str, caplog, monkeypatch
):
    with pytest.raises(UNREACHABLE):
        await score("code", SUM, TESTS, url=lost_url, timeout_s=1)
    with pytest.raises(InvalidRequest, match="tests"):
        await score("code", SUM, "no tests", url=code_url)
    assert not caplog.messages
    result = await score("code", SUM, TESTS, url=lost_url, timeout_s=1, on_failure=-1.0)
    assert (result["score"], result["reward/failed"]) == (-1.0, 1.0)
    assert "cannot be reached" in caplog.messages[0]
    with pytest.raises(InvalidRequest, match="tests"):  # on_failure is for the fleet's failures
        await score("code", SUM, None, url=code_url, on_failure=math.nan)
    with pytest.raises(ValueError, match="on_failure"):
        await score("code", SUM, TESTS, url=code_url, on_failure="zero")


@both
async def test_all_results_have_the_same_keys_and_no_value_is_nan(
    score, code_url: str, lost_url: str, monkeypatch
):
    """verl collects the keys of the first sample, and its validation leaves out None."""
    critique = {"critique": "Overall judgment: Correct"}
    results = [
        await score("code", SUM, TESTS, url=code_url),
        await score("code", "import", TESTS, critique, url=code_url),
        await score("code", "", TESTS, url=code_url),
        await score("code", SUM, TESTS, url=lost_url, timeout_s=0.5, on_failure=0.25),
    ]
    assert len({tuple(each) for each in results}) == 1
    values = [value for each in results for value in each.values() if value is not None]
    assert all(type(value) is float and not math.isnan(value) for value in values)
    assert [each["reward/pass_rate"] for each in results] == [1.0, 0.0, 0.0, None]
    assert [each["reward/critique_valid"] for each in results] == [None, 1.0, None, None]
    monkeypatch.setattr(verl, "_NO_VALUE", math.nan)  # as with verl before 0.9
    assert math.isnan((await score("code", SUM, TESTS, url=code_url))["reward/critique_valid"])


@both
async def test_the_arguments_of_verl_are_accepted_and_unknown_ones_are_refused(
    score, code_url: str
):
    given = dict.fromkeys(("reward_router_address", "reward_model_tokenizer", "reward_model"))
    assert (await score("code", SUM, TESTS, url=code_url, **given))["score"] == 1.0
    with pytest.raises(TypeError, match="on_faliure"):
        await score("code", SUM, TESTS, url=code_url, on_faliure=0.0)
    with pytest.raises(TypeError, match="url"):
        await score("code", SUM, TESTS)


def test_a_batch_is_scored_in_one_request(code_url: str, lost_url: str):
    given = (["code"] * 3, [SUM, "", "Sum them."], [TESTS, json.dumps(TESTS), TESTS])
    infos = [None, {"mode": "all_pass"}, {"revision": ECHO}]
    results = compute_scores(*given, infos, url=code_url)
    assert [each["score"] for each in results] == [1.0, 0.0, 0.0]
    assert [each["reward/critique_valid"] for each in results] == [None, None, 0.0]
    assert [each["score"] for each in compute_scores(*given, url=code_url)] == [1.0, 0.0, 0.0]
    assert compute_scores([], [], [], url=code_url) == []
    results = compute_scores(*given, url=lost_url, timeout_s=0.3, on_failure=-1.0)
    assert [(each["score"], each["reward/failed"]) for each in results] == [(-1.0, 1.0)] * 3
    with pytest.raises(UNREACHABLE):
        compute_scores(*given, url=lost_url, timeout_s=0.3)
    with pytest.raises(InvalidRequest, match="stdout"):
        compute_scores(["code"], [SUM], [{"kind": "stdio", "cases": [{}]}], url=code_url)


def test_the_prime_manager_gets_a_number_or_what_is_no_exception(code_url: str, lost_url: str):
    """It reads `result[0]`, and turns each `Exception` into 0."""
    assert compute_score_prime("code", ECHO, TESTS, None, url=code_url) == 0.5
    with pytest.raises(MissingReward, match="Unavailable: |DeadlineExceeded: "):
        compute_score_prime("code", ECHO, TESTS, None, url=lost_url, timeout_s=0.3)
    with pytest.raises(MissingReward, match="TypeError: .*on_faliure"):
        compute_score_prime("code", ECHO, TESTS, None, url=code_url, on_faliure=0.0)
    assert not issubclass(MissingReward, Exception)
    with pytest.raises(MissingReward, match="compute_score_prime"):
        _ = compute_score("code", ECHO, TESTS, None, url=code_url)[0]


@both
async def test_clips_are_scored_for_the_task_in_the_ground_truth(score, serve):
    service = serve(FakeJudge(0.7, deterministic=False))
    options = {"url": str(service.base_url), "service": "video"}
    task, clip = "put the bowl on the plate", np.zeros((4, 32, 32, 3), np.uint8)
    images = [cv2.imencode(".png", frame)[1].tobytes() for frame in clip]
    for each in (clip, images, np.array(images, dtype=object)):  # as of a parquet file
        extra = {"clip": each, "index": 3}
        result = await score("robot", "", task, extra, **options, binary_reward=False)
        assert result == {"score": 0.7, **MARKS, **VIDEO_CAUSES}
    binary = await score("robot", "", task, {"clip": clip, "nframes": 2}, **options)
    assert binary["score"] == 1.0
    with pytest.raises(InvalidRequest, match="'clip' is missing"):
        await score("robot", "", task, {}, **options)


@both
async def test_an_abstention_is_a_failure_that_is_marked(score, serve):
    service = serve(FakeJudge(score=None))
    clip = np.zeros((4, 32, 32, 3), np.uint8)
    given = ("robot", "", "put the bowl on the plate", {"clip": clip})
    options = {"url": str(service.base_url), "service": "video"}
    result = await score(*given, **options, on_failure=-1.0)
    abstained = {"reward/abstained": 1.0, "reward/cause/no_verdict": 1.0}
    assert result == {"score": -1.0, **MARKS, **VIDEO_CAUSES, **abstained}
    with pytest.raises(Abstained):
        await score(*given, **options)


def test_verl_loads_the_file_by_its_path(code_url: str):
    """As the module `custom_module`, outside of any package."""
    spec = importlib.util.spec_from_file_location("custom_module", Path(verl.__file__))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = {"data_source": "code", "solution_str": SUM, "ground_truth": TESTS, "extra_info": {}}
    assert module.compute_score(**given, url=code_url)["score"] == 1.0
    module._loop.close(close_all(module._scorers))


def test_threads_and_event_loops_share_one_fleet(code_url: str):
    def scored(program: str) -> float:
        return compute_score("code", program, TESTS, url=code_url)["score"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(scored, [SUM, ECHO] * 8)) == [1.0, 0.5] * 8

    async def gathered() -> list[float]:
        calls = [compute_score_async("code", each, TESTS, url=code_url) for each in [SUM, ECHO] * 8]
        scores = [result["score"] for result in await asyncio.gather(*calls)]
        await close_all(verl._scorers)  # in this event loop, which ends; a trainer's goes on
        return scores

    assert [asyncio.run(gathered()) for _ in range(2)] == [[1.0, 0.5] * 8] * 2
    assert len(verl._scorers) == len(verl._loop._workers) == 1
