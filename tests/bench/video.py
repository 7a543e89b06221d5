"""`make bench`: the speed of the video service, as ratios to a baseline measured in the same run.

It uses loopback only. It exits with 1 if a ratio misses its limit.
"""

import asyncio
import base64
import hashlib
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import cv2
import numpy as np
from harness import (
    Ratio,
    Server,
    cache_hit_rates,
    medians_in_turns,
    post,
    redis_server,
    run,
    seconds_of,
    send,
    serving,
    until_stopped,
    watch_health,
)
from items import CLIP, NFRAMES, TASK, frames, random_frames, raw_frames

from rewardfleet import RewardFleet
from rewardfleet.wire.video import VideoRequest, sample_indices
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video

RAW_ROUNDS = 8


def decoding() -> Iterator[Ratio]:
    """Compare decoding 16 of 308 frames of an mp4 with a sequential OpenCV loop."""

    def service() -> None:
        clip = decode_video(str(CLIP), DecodeSpec(NFRAMES, 200_704))
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
    yield Ratio(f"ms to decode {NFRAMES} of 308 frames; an OpenCV loop", ours, other, "<= 1.25")


def frames_cpu() -> Iterator[Ratio]:
    """Compare the CPU time of a request with 16 JPEG frames with that of decoding them."""
    images = jpegs()
    count = 150

    def decode() -> None:
        for image in images * count:
            assert cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) is not None

    def score() -> None:
        answers, _ = send(server.port, (frames_request(images, f"{n}") for n in range(count)))
        assert not any(answer.score["cached"] for answer in answers)

    with service() as server:
        warm_up(server, images)
        ours = server.cpu_of(score)
    other = seconds_of(decode, clock=time.process_time)
    name = "CPU ms of a request with 16 JPEG frames; decoding them"
    yield Ratio(name, ours / count * 1000, other / count * 1000, "<= 2")


def hashed() -> Iterator[Ratio]:
    """Compare the CPU time of a request with raw frames with that of hashing them once."""
    clips = [random_frames(NFRAMES, 256, 256, seed=number) for number in range(8)] * 5
    numbers = itertools.count()
    rounds: list[list[float]] = []

    def hash_all() -> None:
        for clip in clips:
            hashlib.sha256(clip).digest()

    with service() as server, asyncio.Runner() as runner:
        fleet = RewardFleet(video=server.url)

        async def score_all() -> None:
            for clip in clips:
                score = await fleet.video.score(f"task {next(numbers)}", clip)
                assert not score.cached

        for _ in range(RAW_ROUNDS):
            started = time.process_time()
            served = server.cpu_of(lambda: runner.run(score_all()))
            client = time.process_time() - started
            rounds.append([client, served, seconds_of(hash_all, clock=time.process_time)])
        runner.run(fleet.aclose())
    client, served, hashing = (
        statistics.median(column) / len(clips) * 1000 for column in zip(*rounds[1:], strict=True)
    )
    yield Ratio(f"CPU ms of the client, {NFRAMES} raw frames; SHA-256", client, hashing, "<= 2")
    yield Ratio(f"CPU ms of the service, {NFRAMES} raw frames; SHA-256", served, hashing, "<= 3")


def waiting_judge() -> Iterator[Ratio]:
    """Score 64 concurrent requests with a judge that waits 200 ms, and poll `/healthz`."""
    wait_s, callers = 0.2, 64
    images = jpegs()
    requests = [frames_request(images, f"task {number}") for number in range(callers)]
    with service(FakeJudge(wait_s=wait_s)) as server:
        warm_up(server, images)
        with until_stopped(watch_health, server.port) as slowest:
            _, seconds = send(server.port, requests, callers=callers)
            health = slowest()
    name = f"ms of {callers} concurrent requests; of one"
    yield Ratio(name, seconds * 1000, wait_s * 1000, "<= 3")
    yield Ratio("ms of the slowest /healthz meanwhile; 50 ms", health * 1000, 50, "<= 1")


def cache_hits() -> Iterator[Ratio]:
    """Compare requests per second of cached scores with an empty FastAPI endpoint, same body."""
    by_path = post("/score", {"task_text": TASK, "video_path": CLIP.name})
    requests = {
        "by path": by_path,
        f"{NFRAMES} JPEG frames": frames_request(jpegs(), TASK),
        f"{NFRAMES} PNG frames": frames_request(encoded(".png"), TASK),
        f"{NFRAMES} raw frames": post("/score", raw_frames(TASK, frames(), fps=20)),
    }
    with service() as server:
        for name, request in requests.items():
            is_raw = name.endswith("raw frames")
            rates = cache_hit_rates(server, request, VideoRequest, raw_frames=is_raw)
            yield Ratio(f"cached scores/s, {name}; an empty endpoint", *rates, ">= 0.6")
    with redis_server() as url, service(cache=url, cache_mb=0) as server:
        rates = cache_hit_rates(server, by_path, VideoRequest)
    yield Ratio("cached scores/s, by path, in Redis only; an empty endpoint", *rates, ">= 0.4")


def service(judge: FakeJudge | None = None, **settings: object) -> AbstractContextManager[Server]:
    return serving("video", judge or FakeJudge(), video_root=[CLIP.parent], **settings)


def warm_up(server: Server, images: list[bytes]) -> None:
    send(server.port, (frames_request(images, f"warm {number}") for number in range(10)))


def jpegs() -> list[bytes]:
    return encoded(".jpg", cv2.IMWRITE_JPEG_QUALITY, 95)


def encoded(kind: str, *options: int) -> list[bytes]:
    return [cv2.imencode(kind, each[..., ::-1], options)[1].tobytes() for each in frames()]


def frames_request(images: list[bytes], task: str) -> bytes:
    frames = [base64.b64encode(image).decode() for image in images]
    return post("/score", {"task_text": task, "frames_base64": frames, "fps": 20})


if __name__ == "__main__":
    parts = {"decoding": decoding, "frames": frames_cpu, "raw frames": hashed}
    run({**parts, "judge": waiting_judge, "cached": cache_hits})
