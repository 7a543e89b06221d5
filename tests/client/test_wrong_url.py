"""A client whose URL leads to another service, or to no rewardfleet service at all."""

from typing import Any

import pytest

import rewardfleet
from rewardfleet import InvalidRequest, RewardFleet, video_request
from rewardfleet.commands.main import main
from rewardfleet.wire.headers import SERVICE_HEADER
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import LONG_CLIP, table
from .conftest import answering

TASK = "put the bowl on the plate"
REQUEST = video_request(TASK, b"a video file")
SERVERS = table("foreign_servers")
NAMES_THE_SERVICE = "is the code service, not the video service; check the URL"


@pytest.mark.parametrize("coalesce_s", [0.0, 0.01])
async def test_every_call_names_the_service_that_answered(code_url: str, coalesce_s: float):
    async with RewardFleet(video=code_url, coalesce_s=coalesce_s) as fleet:
        for call in (
            fleet.video.score(TASK, b"a video file"),
            fleet.video.reward(TASK, b"a video file"),
            fleet.video.score_batch([REQUEST]),
            fleet.video.score_batch([REQUEST] * 3),
            fleet.video.rewards([REQUEST] * 3),
            fleet.video.health(),
        ):
            with pytest.raises(InvalidRequest, match=NAMES_THE_SERVICE) as failure:
                await call
            assert code_url in str(failure.value)


def test_the_command_names_the_service_that_answered(
    code_url: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["score", "video", str(LONG_CLIP), TASK, "--url", code_url]) == 2
    output = capsys.readouterr()
    assert NAMES_THE_SERVICE in output.err
    assert not output.out


async def test_a_proxy_may_remove_the_header():
    app = create_video_app(VideoSettings(), {"fake": FakeJudge(0.75)})
    removed = []

    async def proxied(scope, receive, send):
        async def send_without_header(message):
            if message["type"] == "http.response.start":
                name = SERVICE_HEADER.encode()
                removed.extend(value for key, value in message["headers"] if key == name)
                others = [header for header in message["headers"] if header[0] != name]
                message = {**message, "headers": others}
            await send(message)

        await app(scope, receive, send_without_header)

    with serving(proxied) as url:
        async with RewardFleet(video=url, binary_reward=False) as fleet:
            assert (await fleet.video.health()).status == "ok"
            assert await fleet.video.reward(TASK, LONG_CLIP.read_bytes()) == 0.75
            scores = await fleet.video.score_batch([REQUEST])
    assert scores[0].error.kind == "invalid", "an item of a batch fails individually"
    assert removed == [b"video"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVERS, ids=lambda case: case["id"])
async def test_another_server_is_recognized(case: dict[str, Any], monkeypatch):
    monkeypatch.setattr("rewardfleet.http.transport._RETRIES", 0)
    error = getattr(rewardfleet, case["error"])
    with answering(case["response"].encode()) as url:
        async with RewardFleet(video=url) as fleet:
            with pytest.raises(error, match=case["message"]) as failure:
                await fleet.video.score(TASK, "clip.mp4")
    assert url in str(failure.value)
