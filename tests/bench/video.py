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

import cv2
import numpy as np
from harness import (
    Ratio,
    cache_hit_rates,
    cpu_seconds,
    health_watched,
    medians_in_turns,
    post,
    report,
    seconds_of,
    send,
    serving,
)

from rewardfleet import RewardFleet
from rewardfleet.wire.video import VideoRequest, sample_indices
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.frames import decode_video
from rewardfleet_server.video.settings import VideoSettings

CLIP = (Path(__file__).parent.parent / "data" / "libero" / "videos") / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
NFRAMES = 16
RAW_ROUNDS = 8


def main() -> int:
    by_path = json.dumps({"task_text": TASK, "video_path": CLIP.name}).encode()
    return report(
        [
            decoding(),
            frames_cpu(),
            *raw_frames(),
            *waiting_judge(),
            cache_hits("by path", post("/score", by_path)),
            cache_hits("16 JPEG frames", frames_request(jpegs(), TASK)),
        ]
    )


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


def cache_hits(source: str, request: bytes) -> Ratio:
    """Compare requests per second of cache hits with an empty FastAPI endpoint, same body."""
    with service(FakeJudge()) as (port, _):
        ours, other = cache_hit_rates(port, request, VideoRequest, seconds=2)
    return Ratio(f"cache hits/s, {source}; an empty FastAPI endpoint", ours, other, ">= 0.5")


def service(judge: FakeJudge) -> AbstractContextManager[tuple[int, int]]:
    settings = VideoSettings(port=0, video_root=[CLIP.parent])
    return serving(create_app, settings, {"fake": judge})


def warm_up(port: int, images: list[bytes]) -> None:
    send(port, (frames_request(images, f"warm {number}") for number in range(10)))


def jpegs() -> list[bytes]:
    clip = decode_video(str(CLIP), count=NFRAMES, max_pixels=200_704, stop=threading.Event())
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    return [cv2.imencode(".jpg", frame[..., ::-1], quality)[1].tobytes() for frame in clip.frames]


def frames_request(images: list[bytes], task: str) -> bytes:
    frames = [base64.b64encode(image).decode() for image in images]
    body = {"task_text": task, "frames_base64": frames, "fps": 20}
    return post("/score", json.dumps(body).encode())


if __name__ == "__main__":
    sys.exit(main())
