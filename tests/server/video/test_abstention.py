"""`--abstention`: what clients get where a judge abstains, in its modes `null` and `error`."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from rewardfleet import Abstained, RewardFleet
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import Serve
from ..http.test_requests import metric
from ..test_engine import item_metrics
from .test_bad_input import check_problem


def original_request(path: Path, **fields: object) -> dict[str, object]:
    """Build the request of the original client for an episode of 16 sampled frames."""
    body = {"task_text": "t", "video_path": str(path), "nframes": 16, "max_pixels": 256 * 28 * 28}
    return {**body, **fields}


def test_an_abstention_is_an_error_that_is_not_retried_on_every_route(
    serve: Serve, frames_request: dict[str, Any]
):
    failing = serve(FakeJudge(None), abstention="error")
    for _ in range(2):
        answer = failing.post("/score", json=frames_request)
        check_problem(answer, "abstained", "judge fake abstained: fake judgment of 1 frames")
        assert answer.status_code == 424
        assert answer.json()["retryable"] is False
        assert "retry-after" not in answer.headers
    items = {"items": [frames_request, {}]}
    abstained, invalid = failing.post("/score/batch", json=items).json()["results"]
    assert (abstained["status"], abstained["score"]) == ("error", None)
    assert abstained["error"]["kind"] == "abstained"
    assert abstained["model_output"] == "fake judgment of 1 frames"
    assert invalid["error"]["kind"] == "invalid"
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
    found, results = [], 'rewardfleet_results_total{backend="fake",service="video",status="%s"}'
    for abstention in ("null", "error"):
        client = serve(FakeJudge(None), abstention=abstention)
        client.post(path, json={"items": [frames_request]} if "batch" in path else frames_request)
        found.append(item_metrics(client))
        assert [metric(client, results % each) for each in ("abstained", "error")] == [1, 0]
    assert found[0] == found[1]


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


def test_starting_without_a_video_root_warns_once(tmp_path: Path):
    for roots in ([], [tmp_path]):
        app = create_app(VideoSettings(video_root=roots), {"fake": FakeJudge()})
        assert len(app.service.warnings) == (not roots)
        assert all("--video-root FOLDER" in each for each in app.service.warnings)
