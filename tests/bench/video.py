"""`make bench`: the speed of the video service, as ratios to a baseline measured in the same run.

It uses loopback only. It exits with 1 if a ratio misses its limit.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import statistics
import sys
import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from harness import (
    Ratio,
    cache_hit_rates,
    cpu_seconds,
    health_watched,
    medians_in_turns,
    post,
    redis_server,
    report,
    seconds_of,
    send,
    serving,
)

from rewardfleet import RewardFleet
from rewardfleet.wire.frames import Frames, encode_body
from rewardfleet.wire.video import VideoRequest, sample_indices
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import decode_video
from rewardfleet_server.video.settings import VideoSettings

CLIP = (Path(__file__).parent.parent / "data" / "libero" / "videos") / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
NFRAMES = 16
RAW_ROUNDS = 8


def main() -> int:
    return report([decoding(), frames_cpu(), *raw_frames(), *waiting_judge(), *cache_hits()])


def decoding() -> Ratio:
    """Compare decoding 16 of 308 frames of an mp4 with a sequential OpenCV loop."""

    def service() -> None:
        stop = threading.Event()
        clip = decode_video(str(CLIP), count=NFRAMES, max_pixels=200_704, stop=stop)
        assert len(clip.frames) == NFRAMES

    def baseline() -> None:
        capture = cv2.VideoCapture(str(CLIP))
        wanted = set(sample_indices(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), NFRAMES))
        frames, index = [], 0
        while capture.grab():
            if index in wanted:
                frames.append(capture.retrieve()[1])
            index += 1
        capture.release()
        assert len(frames) == NFRAMES

    ours, other = medians_in_turns(
        lambda: seconds_of(service) * 1000, lambda: seconds_of(baseline) * 1000, rounds=20
    )
    return Ratio(f"ms to decode {NFRAMES} of 308 frames; an OpenCV loop", ours, other, "<= 1.25")


def frames_cpu() -> Ratio:
    """Compare the CPU time of a request with 16 JPEG frames with that of decoding them."""
    images = jpegs()
    count = 150

    def decode() -> None:
        for image in images * count:
            assert cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) is not None

    def score() -> None:
        answers, _ = send(port, (frames_request(images, f"task {n}") for n in range(count)))
        assert not any(json.loads(answer.body)["cached"] for answer in answers)

    with service(FakeJudge()) as (port, pid):
        warm_up(port, images)
        ours = seconds_of(score, clock=partial(cpu_seconds, pid))
    other = seconds_of(decode, clock=time.process_time)
    name = "CPU ms of a request with 16 JPEG frames; decoding them"
    return Ratio(name, ours / count * 1000, other / count * 1000, "<= 2")


def raw_frames() -> list[Ratio]:
    """Compare the CPU time of a request with raw frames with that of hashing them once."""
    rng = np.random.default_rng(0)
    clips = [rng.integers(0, 256, (NFRAMES, 256, 256, 3), np.uint8) for _ in range(8)]
    numbers = itertools.count()
    rounds: list[list[float]] = []

    async def measure(port: int, pid: int) -> None:
        async with RewardFleet(video=f"http://127.0.0.1:{port}") as fleet:
            for _ in range(RAW_ROUNDS):
                before = time.process_time(), cpu_seconds(pid)
                for clip in clips * 5:
                    score = await fleet.video.score(f"task {next(numbers)}", clip)
                    assert not score.cached
                after = time.process_time(), cpu_seconds(pid)
                hashing = seconds_of(hash_all, clock=time.process_time)
                rounds.append([after[0] - before[0], after[1] - before[1], hashing])

    def hash_all() -> None:
        for clip in clips * 5:
            hashlib.sha256(clip).digest()

    with service(FakeJudge()) as (port, pid):
        asyncio.run(measure(port, pid))
    client, served, hashing = (
        statistics.median(column) / (5 * len(clips)) * 1000
        for column in zip(*rounds[1:], strict=True)
    )
    return [
        Ratio(f"CPU ms of the client, {NFRAMES} raw frames; SHA-256", client, hashing, "<= 2"),
        Ratio(f"CPU ms of the service, {NFRAMES} raw frames; SHA-256", served, hashing, "<= 3"),
    ]


def waiting_judge() -> list[Ratio]:
    """Score 64 concurrent requests with a judge that waits 200 ms, and poll `/healthz`."""
    wait_s, callers = 0.2, 64
    images = jpegs()
    requests = [frames_request(images, f"task {number}") for number in range(callers)]
    with service(FakeJudge(wait_s=wait_s)) as (port, _):
        warm_up(port, images)
        with health_watched(port) as slowest:
            _, seconds = send(port, requests, callers=callers)
            health = slowest()
    return [
        Ratio(
            f"ms of {callers} concurrent requests; of one", seconds * 1000, wait_s * 1000, "<= 3"
        ),
        Ratio("ms of the slowest /healthz meanwhile; 50 ms", health * 1000, 50, "<= 1"),
    ]


def cache_hits() -> list[Ratio]:
    """Compare requests per second of cached scores with an empty FastAPI endpoint, same body."""
    path = {"task_text": TASK, "video_path": CLIP.name}
    by_path = post("/score", json.dumps(path).encode())
    rows = {
        "by path": by_path,
        f"{NFRAMES} JPEG frames": frames_request(jpegs(), TASK),
        f"{NFRAMES} PNG frames": frames_request(pngs(), TASK),
        f"{NFRAMES} raw frames": raw_frames_request(TASK),
    }
    ratios = []
    with service(FakeJudge()) as served:
        for name, request in rows.items():
            raw = name.endswith("raw frames")
            ours, other = cache_hit_rates(served, request, VideoRequest, raw_frames=raw)
            ratios.append(
                Ratio(f"cached scores/s, {name}; an empty endpoint", ours, other, ">= 0.6")
            )
    with redis_server() as url, service(FakeJudge(), cache=url, cache_mb=0) as served:
        ours, other = cache_hit_rates(served, by_path, VideoRequest)
    name = "cached scores/s, by path, in Redis only; an empty endpoint"
    return [*ratios, Ratio(name, ours, other, ">= 0.4")]


def service(judge: FakeJudge, **given: Any) -> AbstractContextManager[tuple[int, int]]:
    settings = VideoSettings(port=0, video_root=[CLIP.parent], **given)
    return serving(create_app, settings, {"fake": judge})


def warm_up(port: int, images: list[bytes]) -> None:
    send(port, (frames_request(images, f"warm {number}") for number in range(10)))


def frames() -> list[np.ndarray]:
    """Return 16 frames of 256 x 256 of the clip, RGB."""
    stop = threading.Event()
    clip = decode_video(str(CLIP), count=NFRAMES, max_pixels=200_704, stop=stop)
    assert clip.frames[0].shape == (256, 256, 3)
    return list(clip.frames)


def jpegs() -> list[bytes]:
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    return [cv2.imencode(".jpg", frame[..., ::-1], quality)[1].tobytes() for frame in frames()]


def pngs() -> list[bytes]:
    return [cv2.imencode(".png", frame[..., ::-1])[1].tobytes() for frame in frames()]


def frames_request(images: list[bytes], task: str) -> bytes:
    frames = [base64.b64encode(image).decode() for image in images]
    body = {"task_text": task, "frames_base64": frames, "fps": 20}
    return post("/score", json.dumps(body).encode())


def raw_frames_request(task: str) -> bytes:
    described = Frames(shape=(NFRAMES, 256, 256, 3))
    described.set_pixels(b"".join(frame.tobytes() for frame in frames()))
    media_type, parts = encode_body(VideoRequest(task_text=task, frames=described, fps=20))
    return post("/score", b"".join(parts), media_type)


if __name__ == "__main__":
    sys.exit(main())
