"""`--abstention`: what clients get where a judge abstains, in its modes `null` and `error`."""

import asyncio
import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet import Abstained, RewardFleet
from rewardfleet.wire.errors import ERRORS, ErrorKind
from rewardfleet_server.serve import announce
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import Serve
from ..http.test_requests import metric
from ..test_engine import item_metrics
from .test_bad_input import check_problem

MakeVideo = Callable[..., Path]


def original_request(path: Path, **fields: object) -> dict[str, object]:
    """Build the request of the original client for an episode of 16 sampled frames."""
    body = {"task_text": "t", "video_path": str(path), "nframes": 16, "max_pixels": 256 * 28 * 28}
    return {**body, **fields}


@pytest.fixture
def failing(serve: Serve) -> httpx.Client:
    """A service whose judge abstains, with `--abstention error`."""
    return serve(FakeJudge(None), abstention="error")


def test_an_abstention_is_an_error_that_is_not_retried(
    failing: httpx.Client, frames_request: dict[str, object]
):
    assert not ERRORS[ErrorKind.ABSTAINED].retryable
    for _ in range(2):
        answer = failing.post("/score", json=frames_request)
        check_problem(answer, "abstained", "judge fake abstained: fake judgment of 1 frames")
        assert answer.status_code == 424
        assert answer.json()["retryable"] is False
        assert "retry-after" not in answer.headers


def test_an_item_of_a_batch_is_an_error_with_the_judges_answer(
    failing: httpx.Client, frames_request: dict[str, object]
):
    items = {"items": [frames_request, {}]}
    abstained, invalid = failing.post("/score/batch", json=items).json()["results"]
    assert (abstained["status"], abstained["score"]) == ("error", None)
    assert abstained["error"]["kind"] == "abstained"
    assert abstained["model_output"] == "fake judgment of 1 frames"
    assert invalid["error"]["kind"] == "invalid"


def test_the_chat_route_answers_with_an_error_as_well(
    failing: httpx.Client, frames_request: dict[str, Any]
):
    image = {"url": "data:image/jpeg;base64," + frames_request["frames_base64"][0]}
    for text in ("t", "positive, negative or unclear?"):
        parts = [{"type": "image_url", "image_url": image}, {"type": "text", "text": text}]
        body = {"messages": [{"role": "user", "content": parts}]}
        answer = failing.post("/v1/chat/completions", json=body)
        assert answer.status_code == 424
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("abstained", "server_error")


@pytest.mark.parametrize("path", ["/score", "/score/batch"])
def test_it_is_counted_as_an_abstention_in_both_modes(
    serve: Serve, frames_request: dict[str, object], path: str
):
    found = []
    for abstention in ("null", "error"):
        client = serve(FakeJudge(None), abstention=abstention)
        client.post(path, json={"items": [frames_request]} if "batch" in path else frames_request)
        found.append(item_metrics(client))
        results = 'rewardfleet_results_total{backend="fake",service="video",status="abstained"}'
        assert metric(client, results) == 1
    assert found[0] == found[1]
    assert (
        metric(client, 'rewardfleet_results_total{backend="fake",service="video",status="error"}')
        == 0
    )


def test_concurrent_abstentions_that_share_a_judgment_are_all_errors(
    serve: Serve, frames_request: dict[str, object]
):
    judge = FakeJudge(None, wait_s=0.1)
    client = serve(judge, abstention="error")
    items = {"items": [frames_request] * 4}
    results = client.post("/score/batch", json=items).json()["results"]
    assert [each["error"]["kind"] for each in results] == ["abstained"] * 4
    assert len(judge.seen) == 1


@pytest.mark.parametrize("abstention", ["null", "error"])
async def test_the_client_raises_abstained_in_both_modes(
    serve: Serve, frames_request: dict[str, Any], abstention: str
):
    judge = FakeJudge(None)
    client = await asyncio.to_thread(lambda: serve(judge, abstention=abstention))
    clip = base64.b64decode(frames_request["frames_base64"][0])
    async with RewardFleet(video=str(client.base_url)) as fleet:
        with pytest.raises(Abstained, match="judge fake abstained: fake judgment") as failure:
            await fleet.video.reward("t", [clip])
        assert len(judge.seen) == 1  # it is not sent again
        if abstention == "error":
            assert failure.value.score is None and failure.value.request_id
            with pytest.raises(Abstained):
                await fleet.video.score("t", [clip])
        else:
            assert failure.value.score is not None and failure.value.score.backend == "fake"
            assert (await fleet.video.score("t", [clip])).status == "abstained"
    async with RewardFleet(video=str(client.base_url), on_failure=-1.0) as fleet:
        assert await fleet.video.reward("t", [clip]) == -1.0


def test_starting_without_a_video_root_warns_once(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    with caplog.at_level(logging.WARNING):
        for roots in ([], [tmp_path]):
            settings = VideoSettings(video_root=roots)
            announce(create_app(settings, {"fake": FakeJudge()}), settings, "http://a")
    [warning] = [line.getMessage() for line in caplog.records if "video_path" in line.getMessage()]
    assert "--video-root" in warning
