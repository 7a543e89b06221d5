"""The openai client 3.57.0 at the video service's `/v1`: scores, abstentions, errors, retries."""

import asyncio
import base64
import io
from typing import Any

import pytest
from PIL import Image

from rewardfleet_server import admission
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video

from ..conftest import DATA, served
from ..server.processes import service_process
from .trainers import absent, error_of, in_process, needs_clients

pytestmark = [needs_clients, pytest.mark.slow]

VIDEOS = DATA / "libero" / "videos"
RIGHT, WRONG = "success__s63446", "near_miss_hover__s59196"


def messages(clip: str, count: int, task: str = "put the bowl on the stove") -> list[Any]:
    """Return a turn with frames of a clip, as docs/trainers/rlinf.md builds it."""
    parts: list[Any] = [{"type": "text", "text": f"Task: {task}\n\nReturn a score from 0 to 1."}]
    path = str(VIDEOS / f"libero_goal__put_the_bowl_on_the_stove__{clip}.mp4")
    video = decode_video(path, DecodeSpec(max(count, 1), 200_704))
    for frame in video.frames[:count]:
        jpeg = io.BytesIO()
        Image.fromarray(frame).save(jpeg, "JPEG", quality=95)
        url = "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": parts}]


@in_process
async def asked(url: str, clips: list[list[Any]], retries: int) -> list[Any]:
    """Return the judges, then content, refusal and status of each answer; or errors.

    A clip is the arguments of `messages`. They are sent at once.
    """
    absent("jiter")  # reads streams
    import openai

    async def judges() -> object:
        return [each.id async for each in client.models.list()]

    async def answer(clip: list[Any]) -> object:
        create = client.chat.completions.create
        found = await create(model="reference", messages=messages(*clip), temperature=0)
        (choice,), (score,) = found.choices, found.model_extra["scores"]
        return choice.message.content, choice.message.refusal, score["status"]

    options: Any = {"api_key": "any", "max_retries": retries, "timeout": 60}
    async with openai.AsyncOpenAI(base_url=f"{url.rstrip('/')}/v1", **options) as client:
        calls = [judges(), *map(answer, clips)]
        found = await asyncio.gather(*calls, return_exceptions=True)
    return [error_of(each) if isinstance(each, openai.OpenAIError) else each for each in found]


@pytest.mark.slice
def test_clips_get_their_scores_and_what_has_none_is_no_number():
    clips = [[RIGHT, 16], [WRONG, 16], [RIGHT, 16, "fold the towel"], [RIGHT, 0]]
    with service_process("video") as (_, url):
        judges, right, wrong, abstained, invalid = asked(url, clips, 0)
    assert judges == ["reference"]
    assert float(right[0]) > 0.5 > float(wrong[0])
    assert right[1:] == wrong[1:] == [None, "ok"]
    assert abstained == ["null", "the judge abstained", "abstained"]
    assert invalid.startswith("UnprocessableEntityError: Error code: 422")
    assert "send 1 to 1024 frames as image_url parts (got 0)" in invalid


def test_what_is_refused_at_capacity_is_scored_when_the_client_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(admission, "MAX_WAITING", 1)
    limits = {"max_in_flight": 1, "max_queue_depth": 1}
    clips = [[RIGHT, count] for count in range(1, 7)]
    with served(FakeJudge(0.25, wait_s=0.5, deterministic=False), **limits) as client:
        once = asked(str(client.base_url), clips, 0)[1:]
        repeated = asked(str(client.base_url), clips, 20)[1:]
    scored = ["0.250000", None, "ok"]
    refused = [each for each in once if each != scored]
    assert 0 < len(refused) < len(clips)
    assert all(each.startswith("RateLimitError: Error code: 429") for each in refused)
    assert repeated == [scored] * len(clips)


def test_without_a_judgment_or_a_service_the_client_raises(dead_url: str):
    broken = FakeJudge(error=RuntimeError("broken"))
    errors = ("APIStatusError: Error code: 424", "InternalServerError: Error code: 502")
    for attempts, judge, error in zip((1, 2), (FakeJudge(None), broken), errors, strict=True):
        with served(judge, abstention="error") as client:
            _, found = asked(str(client.base_url), [[RIGHT, 1]], 1)
        assert found.startswith(error) and len(judge.seen) == attempts
    assert asked(dead_url, [[RIGHT, 1]], 1) == ["APIConnectionError: Connection error."] * 2
