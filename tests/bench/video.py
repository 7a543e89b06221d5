"""`make bench`: the speed of the video service, as ratios to a baseline measured in the same run.

It uses loopback only. It exits with 1 if a ratio misses its limit.
"""

import asyncio
import base64
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import cv2
import numpy as np

from rewardfleet.wire.video import VideoRequest, sample_indices
from rewardfleet_server.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.frames import decode_video
from rewardfleet_server.video.settings import VideoSettings

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, health_watched, in_process, post, rate, run_empty, send_port

CLIP = (Path(__file__).parent.parent / "data" / "libero" / "videos") / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
NFRAMES = 16
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    results = [decoding(), frames_cpu(), waiting_judge(), cache_hits("video_path")]
    results.append(cache_hits("frames_base64"))
    print(f"\n{'measurement':58} {'service':>12} {'baseline':>12} {'ratio':>7} {'limit':>9}")
    for name, service, baseline, ratio, limit, passed in results:
        columns = f"{name:58} {service:>12} {baseline:>12} {ratio:>7.2f} {limit:>9}"
        print(f"{columns} {'' if passed else 'MISSED'}")
    return 0 if all(result[-1] for result in results) else 1


#: Name, value of the service, value of the baseline, ratio, limit, and whether it passed.
Result = tuple[str, str, str, float, str, bool]


def decoding() -> Result:
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

    ours, other = _interleaved(service, baseline, rounds=20)
    name = f"decode {NFRAMES} of 308 frames, ms / OpenCV loop"
    ratio = ours / other
    return name, f"{ours * 1e3:.1f}", f"{other * 1e3:.1f}", ratio, "<= 1.25", ratio <= 1.25


def frames_cpu() -> Result:
    """Compare the CPU time of a request with 16 JPEG frames with that of decoding them."""
    images = _jpegs()
    count = 150

    def decode() -> None:
        for image in images:
            assert cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) is not None

    def bodies() -> list[bytes]:
        return [post("/score", _frames_body(images, f"task {index}")) for index in range(count)]

    async def run(port: int) -> None:
        connection = await Connection.open(port)
        for request in bodies():
            status, body, _ = await connection.request(request)
            assert status == 200 and not json.loads(body)["cached"], body
        connection.close()

    with serving_process(0.0) as (port, pid):
        asyncio.run(_warm(port, images))
        before = _cpu_seconds(pid)
        asyncio.run(run(port))
        ours = (_cpu_seconds(pid) - before) / count
    started = time.process_time()
    for _ in range(count):
        decode()
    other = (time.process_time() - started) / count
    name = "frames_base64 request, CPU ms / decoding its JPEGs"
    ratio = ours / other
    return name, f"{ours * 1e3:.2f}", f"{other * 1e3:.2f}", ratio, "<= 2", ratio <= 2


def waiting_judge() -> Result:
    """Score 64 concurrent requests with a judge that waits 200 ms, and poll `/healthz`."""
    wait_s, callers = 0.2, 64
    images = _jpegs()

    async def run(port: int) -> float:
        connections = [await Connection.open(port) for _ in range(callers)]
        requests = [post("/score", _frames_body(images, f"task {i}")) for i in range(callers)]
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(each.request(request) for each, request in zip(connections, requests, strict=True))
        )
        seconds = time.perf_counter() - started
        assert all(status == 200 for status, _, _ in answers)
        return seconds

    with serving_process(wait_s) as (port, _):
        asyncio.run(_warm(port, images))
        with health_watched(port) as slowest:
            seconds = asyncio.run(run(port))
            health = slowest()
    name = f"{callers} concurrent requests, ms / one (healthz {health * 1e3:.0f} ms <= 50)"
    ratio = seconds / wait_s
    passed = ratio <= 3 and health <= 0.05
    return name, f"{seconds * 1e3:.0f}", f"{wait_s * 1e3:.0f}", ratio, "<= 3", passed


def cache_hits(source: str) -> Result:
    """Compare requests per second of cache hits with an empty FastAPI endpoint, same body."""
    if source == "video_path":
        body = json.dumps({"task_text": TASK, "video_path": CLIP.name}).encode()
    else:
        body = _frames_body(_jpegs(), TASK)
    request = post("/score", body)
    with serving_process(0.0) as (port, _), in_process(run_empty, VideoRequest) as (empty_port, _):
        asyncio.run(rate(port, request, callers=8, seconds=1))
        asyncio.run(rate(empty_port, request, callers=8, seconds=1))
        ours, other = [], []
        for _ in range(3):
            ours.append(asyncio.run(rate(port, request, callers=8, seconds=2)))
            other.append(asyncio.run(rate(empty_port, request, callers=8, seconds=2)))
    hits, empty = statistics.median(ours), statistics.median(other)
    name = f"cache hits ({source}), requests/s / empty FastAPI endpoint"
    return name, f"{hits:.0f}", f"{empty:.0f}", hits / empty, ">= 0.5", hits / empty >= 0.5


def _interleaved(
    ours: Callable[[], None], other: Callable[[], None], *, rounds: int
) -> tuple[float, float]:
    """Time both in turns, so that load on the machine affects both; return the median seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, seconds in zip((ours, other), times, strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


async def _warm(port: int, images: list[bytes]) -> None:
    connection = await Connection.open(port)
    for index in range(10):
        await connection.request(post("/score", _frames_body(images, f"warm {index}")))
    connection.close()


def _jpegs() -> list[bytes]:
    clip = decode_video(str(CLIP), count=NFRAMES, max_pixels=200_704, stop=threading.Event())
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    return [cv2.imencode(".jpg", frame[..., ::-1], quality)[1].tobytes() for frame in clip.frames]


def _frames_body(images: list[bytes], task: str) -> bytes:
    frames = [base64.b64encode(image).decode() for image in images]
    return json.dumps({"task_text": task, "frames_base64": frames, "fps": 20}).encode()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def serving_process(wait_s: float) -> Iterator[tuple[int, int]]:
    """Run the video service in a separate process, with a judge that only waits; give port, pid."""
    with in_process(_run_service, wait_s) as address:
        yield address


def _run_service(pipe: Pipe, wait_s: float) -> None:
    # As in production, with a log line per request.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    configure_logging("info")
    settings = VideoSettings(port=0, video_root=[CLIP.parent])
    app = create_app(settings, {"fake": FakeJudge(wait_s=wait_s)})
    server = Server(app, settings)
    send_port(pipe, server)
    server.run()


if __name__ == "__main__":
    sys.exit(main())
