"""The client against a real service on loopback."""

import asyncio
import concurrent.futures
import math
import threading

import cv2
import httpx
import numpy as np
import pytest

import rewardfleet
from rewardfleet import RewardFleet, Status, blocking, video_request
from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet_server.testing import FakeJudge, wait_until

from ..conftest import LONG_CLIP, Serve, table
from ..tensors import Tensor
from .conftest import Reply

TASK = "put the bowl on the plate"


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (40, 32, 48, 3), np.uint8)


def fleet_of(client: httpx.Client, **options: object) -> RewardFleet:
    return RewardFleet(video=str(client.base_url), **options)


async def test_a_clip_may_be_an_array_a_path_a_file_or_images(serve: Serve, frames, tmp_path):
    judge = FakeJudge(0.75)
    client = serve(judge)
    (tmp_path / "clip.mp4").write_bytes(LONG_CLIP.read_bytes())
    images = [cv2.imencode(".png", frame)[1].tobytes() for frame in frames[:16]]
    async with fleet_of(client) as fleet:
        for clip in (frames, tmp_path / "clip.mp4", "clip.mp4", LONG_CLIP.read_bytes(), images):
            score = await fleet.video.score(TASK, clip)
            assert (score.score, score.status) == (0.75, Status.OK)
    assert len(judge.seen) == 3, "the cache key is the content, whatever the input"


async def test_an_array_is_sent_without_loss(serve: Serve, frames):
    class Recorder(FakeJudge):
        async def judge(self, task_text, clip, backend_kwargs):
            self.frames = clip.frames
            return await super().judge(task_text, clip, backend_kwargs)

    judge = Recorder()
    async with fleet_of(serve(judge)) as fleet:
        score = await fleet.video.score(TASK, frames, nframes=8, fps=20)
    sent = frames[np.linspace(0, 39, 8).round().astype(int)]
    assert np.array_equal(np.stack(judge.frames), sent), "lossless"
    assert score.provenance["frames"]["fps"] == pytest.approx(20 * 7 / 39), (
        "the rate of the frames that were sent"
    )


@pytest.mark.parametrize("make", [np.asarray, Tensor, list, lambda each: list(map(Tensor, each))])
@pytest.mark.parametrize("is_channels_first", [False, True])
def test_frames_may_be_tensors_lists_or_have_their_channels_first(
    frames, make, is_channels_first: bool
):
    expected = video_request(TASK, frames, fps=20, nframes=7)
    given = frames.transpose(0, 3, 1, 2) if is_channels_first else frames
    request = video_request(TASK, make(given), fps=20, nframes=7)
    assert request == expected


@pytest.mark.parametrize("make", [np.asarray, Tensor, list, lambda each: list(map(Tensor, each))])
@pytest.mark.parametrize(
    ("clip", "call"),
    [
        (np.full((4, 8, 8, 3), 0.5, np.float32), "(frames * 255).round()"),
        (np.full((4, 8, 8, 3), 127.0), "frames.round()"),
        (np.full((4, 3, 8, 8), 127), "frames.round()"),
        (np.zeros((4, 8, 8, 4), np.uint8), "frames[..., :3]"),
    ],
    ids=["0 to 1", "0 to 255", "integers", "alpha"],
)
async def test_other_frames_are_refused_with_the_call_that_makes_them_right(clip, call, make):
    """Whatever `on_failure` is: only the caller can correct them."""
    made = make(clip)
    is_list = isinstance(made, list)
    with pytest.raises(rewardfleet.InvalidRequest) as failure:
        video_request(TASK, made)
    assert (call.replace("frames", "frame") if is_list else call) in failure.value.detail
    async with rewardfleet.RewardFleet(video="http://127.0.0.1:9", on_failure=math.nan) as fleet:
        with pytest.raises(rewardfleet.InvalidRequest):
            await fleet.video.reward(TASK, made)
    if isinstance(made[0] if is_list else made, np.ndarray):
        right = eval(failure.value.detail.rpartition("give ")[2], {"frames": made, "np": np})
        assert video_request(TASK, right).frames


async def test_failures_are_typed_and_carry_the_message_of_the_service(
    serve: Serve, frames, tmp_path
):
    client = serve(FakeJudge(error=RuntimeError("the engine is dead")))
    async with fleet_of(client) as fleet:
        with pytest.raises(rewardfleet.BackendFailed, match="the engine is dead") as failure:
            await fleet.video.score(TASK, frames)
        assert failure.value.retryable and failure.value.request_id
        with pytest.raises(rewardfleet.NotFound, match="none.mp4"):
            await fleet.video.score(TASK, "none.mp4")
        with pytest.raises(rewardfleet.InvalidRequest, match="not loaded"):
            await fleet.video.score(TASK, frames, backend="oracle")
    key_file = tmp_path / "keys"
    key_file.write_text("right")
    locked = serve(api_key_file=key_file)
    # No reward replaces what the caller must correct: a run would train on nothing.
    async with fleet_of(client, on_failure=math.nan) as fleet:
        with pytest.raises(rewardfleet.Forbidden):
            await fleet.video.reward(TASK, "/etc/passwd")
    async with fleet_of(locked, api_key="wrong", on_failure=math.nan) as fleet:
        with pytest.raises(rewardfleet.Unauthorized):
            await fleet.video.reward(TASK, frames)
    async with fleet_of(locked, api_key="right") as fleet:
        assert (await fleet.video.score(TASK, frames)).score == 1
    in_url = str(locked.base_url).replace("://", "://any:right@")
    async with RewardFleet(video=in_url) as fleet:
        assert (await fleet.video.score(TASK, frames)).score == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "options", "reward"),
    [
        (0.7, {}, 1.0),
        (0.5, {}, 1.0),
        (0.49, {}, 0.0),
        (0.7, {"success_threshold": 0.9}, 0.0),
        (0.7, {"binary_reward": False}, 0.7),
    ],
)
async def test_a_score_becomes_a_reward(serve: Serve, frames, score, options, reward):
    client = serve(FakeJudge(score))
    async with fleet_of(client, **options) as fleet:
        assert await fleet.video.reward(TASK, frames) == reward
        assert await fleet.video.rewards([video_request(TASK, frames)]) == [reward]


@pytest.mark.slow
@pytest.mark.parametrize("judge", [FakeJudge(None), FakeJudge(error=RuntimeError("dead"))])
async def test_a_missing_reward_is_raised_or_replaced_with_a_warning(
    serve: Serve, frames, judge, caplog
):
    client = serve(judge)
    requests = [video_request(TASK, frames)]
    async with fleet_of(client) as fleet:
        for call in (fleet.video.reward(TASK, frames), fleet.video.rewards(requests)):
            with pytest.raises((rewardfleet.Abstained, rewardfleet.BackendFailed)):
                await call
    for constant in (math.nan, -1.0):
        caplog.clear()
        async with fleet_of(client, on_failure=constant) as fleet:
            rewards = [await fleet.video.reward(TASK, frames), *await fleet.video.rewards(requests)]
        assert rewards == pytest.approx([constant] * 2, nan_ok=True)
        assert caplog.text.count("no reward") == 2, "one warning each"


@pytest.mark.parametrize("options", table("client_options"), ids=str)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RewardFleet(video="http://127.0.0.1:1", **options)


def test_a_key_that_does_not_fit_in_a_header_is_refused_without_showing_it():
    for key in ("schlüssel", "two\nlines", "a\0b"):
        with pytest.raises(ValueError, match="plain ASCII") as refused:
            RewardFleet(video="http://127.0.0.1:1", api_key=key)
        assert key not in str(refused.value)
    RewardFleet(video="http://127.0.0.1:1", api_key="trailing\n")


async def test_the_blocking_client_has_the_same_calls_and_leaves_no_thread(serve: Serve, frames):
    """Also inside a running event loop, as in a notebook or in a trainer that is asynchronous."""
    client = serve(FakeJudge(0.75))
    before = set(threading.enumerate())
    with blocking.RewardFleet(video=str(client.base_url), binary_reward=False) as fleet:
        assert fleet.video.score(TASK, frames).score == 0.75
        assert fleet.video.reward(TASK, frames) == 0.75
        assert fleet.video.rewards([video_request(TASK, frames)]) == [0.75]
        assert fleet.video.health().loaded_backends == ["fake"]
        with pytest.raises(rewardfleet.NotFound):
            fleet.video.score(TASK, "none.mp4")
    fleet.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert "rewardfleet" not in left


def test_closing_the_blocking_client_cancels_the_calls_of_other_threads(serve: Serve, frames):
    judge = FakeJudge(wait_s=60)
    client = serve(judge)
    fleet = blocking.RewardFleet(video=str(client.base_url))
    ended = threading.Event()

    def call() -> None:
        try:
            fleet.video.score(TASK, frames)
        except concurrent.futures.CancelledError:
            ended.set()

    threading.Thread(target=call, daemon=True).start()
    wait_until(lambda: len(judge.seen) == 1)
    fleet.close()
    assert ended.wait(30)


def test_closing_leaves_it_to_calls_to_cancel_their_tasks():
    """AnyIO's tasks must not be cancelled before their first step."""
    loop = EventLoopThread()
    tasks: list[asyncio.Task[None]] = []
    cancelled_first = []

    async def call() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(60)))
        try:
            await asyncio.sleep(60)
        finally:
            cancelled_first.append(tasks[0].cancelling() > 0 or tasks[0].done())
            tasks[0].cancel()

    future = loop.start(call())
    wait_until(lambda: bool(tasks))
    loop.close(asyncio.sleep(0))
    assert future.cancelled()
    assert cancelled_first == [False]


@pytest.mark.slow
async def test_unset_fields_are_not_sent(replica):
    """A service of an older version would refuse fields that it does not know."""
    service = await replica(Reply(422))
    request = video_request(TASK, "clip.mp4")
    async with RewardFleet(video=service.url) as fleet:
        for call in (fleet.video.score(TASK, "clip.mp4"), fleet.video.score_batch([request] * 2)):
            with pytest.raises(rewardfleet.InvalidRequest):
                await call
    sent = {"task_text", "video_path", "nframes", "max_pixels", "backend_kwargs"}
    assert [set(item) for each in service.received for item in each.items] == [sent] * 3
