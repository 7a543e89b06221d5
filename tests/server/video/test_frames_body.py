"""Frames as raw bytes: bodies as another language would write them, and those of the client."""

import copy
import hashlib
import json
import pickle
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import zstandard

from rewardfleet import RewardFleet, TooLarge, blocking, video_request
from rewardfleet.wire.frames import FRAMES_TYPE
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.clip.decoding_limit import DecodingLimit

from ...conftest import served, table

TASK = "put the bowl on the plate"
MAX_BODY_MB = 8


class RecordingJudge(FakeJudge):
    """A judge that stores the frames that it sees."""

    async def judge(self, task_text, clip, backend_kwargs):
        self.clip = clip
        self.frames = np.stack(clip.frames)
        return await super().judge(task_text, clip, backend_kwargs)


@pytest.fixture
def judge() -> RecordingJudge:
    return RecordingJudge()


@pytest.fixture
def client(judge: RecordingJudge) -> Iterator[httpx.Client]:
    with served(judge, max_body_mb=MAX_BODY_MB) as client:
        yield client


def clip(count: int = 4, height: int = 32, width: int = 48, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


def body(document: object, *pixels: bytes) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(4, "little") + text + b"".join(pixels)


def item(frames: np.ndarray, **fields: object) -> dict[str, object]:
    return {"task_text": TASK, "frames": {"shape": frames.shape}, **fields}


def post(
    client: httpx.Client, content: bytes, path: str = "/score", **headers: str
) -> httpx.Response:
    return client.post(path, content=content, headers={"content-type": FRAMES_TYPE, **headers})


ZSTD = {"content-encoding": "zstd"}


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def test_the_judge_sees_the_frames_that_were_sent(client, judge):
    frames = clip()
    digest = hashlib.sha256(frames).hexdigest()
    answer = post(client, body(item(frames, fps=5, sha256=digest), frames.tobytes())).json()
    assert (answer["status"], answer["provenance"]["frames"]["fps"]) == ("ok", 5)
    assert np.array_equal(judge.frames, frames)
    frames = clip(seed=1)
    document = item(frames)
    document["frames"] = {"shape": frames.transpose(0, 3, 1, 2).shape, "order": "TCHW"}
    planes = frames.transpose(0, 3, 1, 2).tobytes()
    assert post(client, body(document, planes)).json()["status"] == "ok"
    assert np.array_equal(judge.frames, frames)


def test_a_body_may_come_in_chunks_of_which_none_says_how_many_follow(client, judge):
    frames = clip(count=16, height=120, width=160)
    content = body(item(frames), frames.tobytes())
    chunks = (content[start : start + 70_000] for start in range(0, len(content), 70_000))
    headers = {"content-type": FRAMES_TYPE}
    answer = client.post("/score", content=chunks, headers=headers)
    assert "content-length" not in answer.request.headers
    assert answer.json()["status"] == "ok", answer.text
    assert np.array_equal(judge.frames, frames)


def test_frames_that_are_as_they_are_judged_need_no_decoder(client, judge, monkeypatch):
    monkeypatch.setattr(DecodingLimit, "CAPACITY", 1)
    frames = clip(height=64, width=64)
    content = frames.tobytes()
    assert post(client, body(item(frames, max_pixels=64 * 64), content)).json()["status"] == "ok"
    assert np.array_equal(judge.frames, frames)
    planar = {"task_text": TASK, "frames": {"shape": (4, 3, 64, 64), "order": "TCHW"}}
    for document in (item(frames, max_pixels=32 * 32), planar):
        assert post(client, body(document, content)).json()["kind"] == "too_large"


def test_a_compressed_body_is_the_same_body_whose_pixels_no_judge_can_change(client, judge):
    """Also of several frames of zstd: items share the pixels."""
    frames = clip()
    for fps in (1, 2):
        content = body(item(frames, fps=fps), frames.tobytes())
        parts = zstd(content[:2]) + zstd(content[2:900]) + zstd(content[900:])
        sent = [(content, {}), *((each, ZSTD) for each in (zstd(content), parts))]
        for number, (each, headers) in enumerate(sent if fps == 1 else sent[::-1]):
            assert post(client, each, **headers).json()["cached"] is (number > 0)
        assert np.array_equal(judge.frames, frames)
        assert not any(frame.flags.writeable for frame in judge.clip.frames)


def test_the_shape_and_the_rate_are_part_of_the_cache_key(client, judge):
    frames = clip()
    seen = []
    for shape in (frames.shape, (4, 48, 32, 3), (8, 16, 48, 3)):
        document = {"task_text": TASK, "frames": {"shape": shape}}
        seen.append(post(client, body(document, frames.tobytes())).json()["cached"])
    seen.append(post(client, body(item(frames, fps=3), frames.tobytes())).json()["cached"])
    assert seen == [False] * 4
    frames = clip(count=9)  # they are selected and scaled like those of a video
    post(client, body(item(frames, nframes=3, max_pixels=800), frames.tobytes()))
    assert judge.clip.indices == (0, 4, 8)
    assert judge.frames[0].size <= 800 * 3


def test_an_invalid_item_of_a_batch_does_not_fail_the_others(client):
    first, last = clip(seed=1), clip(count=2, seed=2)
    items = [
        item(first),
        {"task_text": TASK, "frames": {"shape": [1, 2, 3, 4]}},
        {"task_text": TASK, "frames": {"shape": last.shape, "offset": first.size}},
        {"task_text": "", "frames": {"shape": [1, 2, 2, 3], "offset": first.size + last.size}},
    ]
    content = body({"items": items}, first.tobytes(), last.tobytes(), bytes(12))
    for each in (content, zstd(content)):
        headers = {} if each is content else ZSTD
        results = post(client, each, "/score/batch", **headers).json()["results"]
        assert [result["status"] for result in results] == ["ok", "error", "ok", "error"]
        assert "needs 3 channels" in results[1]["error"]["detail"]


FRAMES = clip()
PIXELS = FRAMES.tobytes()
VALID = body(item(FRAMES), PIXELS)
INVALID = [(body(item(FRAMES) | f, PIXELS), detail) for f, detail in table("invalid_frames")]


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "the body ends 4 bytes too early"),
        (b"\0\0", "the body ends 2 bytes too early"),
        (b"\xff\xff\xff\xff" + VALID[4:], "may have 8388608 bytes; its first 4 bytes state 4294"),
        (json.dumps(item(FRAMES)).encode(), "may have 8388608 bytes"),
        (VALID[:20], "too early"),
        (VALID[:-1], "the body ends 1 bytes too early"),
        (VALID + b"\0", f"longer than the {len(PIXELS)} bytes of its frames"),
        *INVALID,
        (body({"task_text": TASK}, PIXELS), "got none"),
        (body(item(FRAMES, video_path="a.mp4"), PIXELS), "video_path and frames"),
        (body({"task_text": TASK, "video_path": "a.mp4"}, PIXELS), "longer than the 0 bytes"),
    ],
)
def test_an_invalid_body_is_refused_with_the_reason(client, content, detail):
    for each, headers in ((content, {}), (zstd(content), ZSTD)):
        answer = post(client, each, **headers)
        assert answer.status_code == 422, answer.text
        assert detail in answer.json()["detail"]


def test_frames_that_are_too_large_are_refused_before_they_are_decompressed(client):
    shape = [1024, 2**20, 2**20, 3]
    bomb = zstd(body({"task_text": TASK, "frames": {"shape": shape}}, bytes(2**20)))
    answer = post(client, bomb, **ZSTD)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")
    wide = np.zeros((1, 1, 2**20 // 2, 3), np.uint8)
    content = body({"task_text": TASK, "frames": {"shape": [1, 2**20, 2**20, 3]}}, wide.tobytes())
    assert post(client, content).status_code == 413
    # Larger than the largest frame, and not than the largest body.
    frames = bytes(3 * 2**20)
    long = post(client, body({"task_text": TASK, "frames": {"shape": [1, 1, 2**20, 3]}}, frames))
    assert long.status_code == 200, "a row of a million pixels is below the limit on a frame"


def test_a_damaged_or_too_long_compressed_body_is_refused(client):
    """Pixels beyond the declared shape are not decompressed."""
    answer = post(client, zstd(VALID + bytes(2**30)), **ZSTD)
    assert answer.status_code == 422 and "longer than" in answer.json()["detail"]
    for content in (b"", b"not zstd", zstd(VALID)[:100], zstd(VALID)[:-9]):
        assert post(client, content, **ZSTD).status_code == 422, content


def test_other_encodings_and_places_are_refused(client):
    gzip = post(client, VALID, **{"content-encoding": "gzip"})
    assert "'gzip' is not accepted; send none, or zstd" in gzip.json()["detail"]
    document = item(FRAMES)
    in_json = client.post("/score", json=document)
    assert f"a body of the type {FRAMES_TYPE}" in in_json.json()["detail"]
    as_json = {**ZSTD, "content-type": "application/json"}
    answer = client.post("/score", content=zstd(json.dumps(document).encode()), headers=as_json)
    assert "is not accepted; send none" in answer.json()["detail"]
    chat = post(client, VALID, "/v1/chat/completions")
    assert chat.status_code == 422
    assert "application/json" in chat.text


@pytest.mark.parametrize("options", [{}, {"compress_frames": True}], ids=["plain", "zstd"])
async def test_the_client_sends_frames_in_single_requests_and_batches(client, judge, options):
    frames = clip(count=40)
    planes = np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
    async with RewardFleet(video=str(client.base_url), **options) as fleet:
        for each in (frames, planes, list(frames), frames[::-1][::-1], frames.copy(order="F")):
            score = await fleet.video.score(TASK, each, nframes=8)
            assert (score.score, score.cached) == (1.0, each is not frames and each is not planes)
            expected = frames[np.linspace(0, 39, 8).round().astype(int)]
            assert np.array_equal(judge.frames, expected)
        clips = [clip(seed=seed) for seed in range(5)]
        requests = [video_request(f"task {number}", each) for number, each in enumerate(clips)]
        scores = await fleet.video.score_batch(requests)
    assert [score.status for score in scores] == ["ok"] * 5
    assert len(judge.seen) == 7


@pytest.mark.parametrize("options", [{}, {"compress_frames": True}], ids=["plain", "zstd"])
async def test_a_batch_may_have_frames_and_large_files(client, make_video, options):
    file = make_video(8).read_bytes() + b"\0\x20\0\0free" + bytes(2**21 - 8)
    requests = [video_request("é" * 4096, each) for each in (clip(), file)]
    async with RewardFleet(video=str(client.base_url), **options) as fleet:
        scores = await fleet.video.score_batch(requests)
    assert [score.error for score in scores] == [None, None]
    assert 'batch_duration_seconds_count{service="video"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
async def test_the_client_sends_very_large_frames_as_png(client, judge, axes):
    frames = np.zeros((19, 720, 1280, 3), np.uint8)
    frames[:, :, 600:, 1] = np.arange(19)[:, None, None]
    sent = np.ascontiguousarray(frames.transpose(axes))
    async with RewardFleet(video=str(client.base_url)) as fleet:
        await fleet.video.score(TASK, sent, nframes=19, max_pixels=720 * 1280)
    assert np.array_equal(judge.frames, frames)


async def test_the_client_reports_what_is_too_large(client):
    async with RewardFleet(video=str(client.base_url)) as fleet:
        with pytest.raises(TooLarge):
            await fleet.video.score(TASK, np.zeros((16, 512, 512, 3), np.uint8))


def test_a_request_can_be_pickled_and_a_deep_copy_has_its_own_pixels():
    frames = clip()
    request = video_request(TASK, frames)
    copies = [pickle.loads(pickle.dumps(request)), copy.deepcopy(request)]
    assert copies[1] == request
    frames[:] = 0
    for copied in copies:
        assert b"".join(copied.frames.pixels) == clip().tobytes()
        assert copied.frames.shape == frames.shape


def test_a_digest_that_does_not_fit_is_refused(client):
    frames = clip()
    request = video_request(TASK, frames)
    frames[0, 0, 0, 0] ^= 1  # as a trainer that writes into its buffer too early
    with blocking.RewardFleet(video=str(client.base_url)) as fleet:
        (score,) = fleet.video.score_batch([request])
    assert score.error is not None
    assert "damaged on its way" in score.error.detail
