"""The memory of decoders counts in the same limit as that of frames, before they are opened."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import httpx
import numpy as np
import pytest
from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest, TooLarge
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.clip.decoding_limit import DecodingLimit
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video, video_cost
from rewardfleet_server.video.judges import Judgment

from ...conftest import DATA, served
from ..processes import service_process

SMALL = DATA / "mp4" / "imageio.mp4"
LARGE_FRAMES = 24
#: 16 reference frames of 10 bits, and three more that wait to be shown.
MANY_REFERENCES = {"preset": "ultrafast", "x264-params": "ref=16:bframes=3:b-adapt=0:scenecut=0"}
#: Encoder, options and pixel format.
ENCODERS = {
    "h264": ("libx264", MANY_REFERENCES, "yuv420p10le"),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}, "yuv420p10le"),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, "yuv420p"),
    "mpeg4": ("mpeg4", {"bf": "2"}, "yuv420p"),
    "mjpeg": ("mjpeg", {}, "yuvj420p"),
}
PEAK = """
import sys
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video, video_cost

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10

def decode(path):
    memory = video_cost(path).memory
    decode_video(path, DecodeSpec(2, 10_000, memory=memory))
    return memory

decode(sys.argv[1])  # loads all libraries
for path in sys.argv[2:]:
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins again
    before = status("VmRSS")
    print(decode(path), status("VmHWM") - before)
"""


def write_clip(path: Path, codec: str, width: int, height: int, frames: int) -> Path:
    """Write a clip of a square that moves over a gradient."""
    encoder, options, pix_fmt = ENCODERS[codec]
    deep = "10" in pix_fmt
    rows = np.tile(np.arange(width) % (900 if deep else 225), (height * 3 // 2, 1))
    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream(encoder, rate=20, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.thread_count = 2
        for index in range(frames):
            content = rows.astype(np.uint16 if deep else np.uint8)
            content[20:120, 8 * index : 8 * index + 100] = 200
            frame = av.VideoFrame.from_ndarray(content, format=pix_fmt)
            frame.pts, frame.time_base = index, Fraction(1, 20)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    return {
        name: write_clip(folder / f"{name}.mp4", name, 1280, 720, LARGE_FRAMES) for name in ENCODERS
    }


def test_decoding_takes_at_most_the_memory_that_is_reserved(clips: dict[str, Path]):
    command = [sys.executable, "-c", PEAK, str(SMALL), *map(str, clips.values())]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    for name, line in zip(clips, output.stdout.splitlines(), strict=True):
        reserved, taken = map(int, line.split())
        assert taken <= reserved, name
        assert reserved < 400e6, name


def test_a_clip_that_takes_more_than_its_headers_say_is_refused(clips: dict[str, Path]):
    path = str(clips["h264"])
    memory = video_cost(path).memory
    assert decode_video(path, DecodeSpec(2, 10_000, memory=memory)).total == 24
    with pytest.raises(InvalidRequest, match="larger frames than its headers state"):
        decode_video(path, DecodeSpec(2, 10_000, memory=memory - 1))


async def test_the_memory_of_a_decoder_is_free_when_it_is_closed():
    limiter, gib = DecodingLimit(20), 2**30
    async with (
        asyncio.timeout(60),
        limiter.reserve(gib // 4, 2 * gib) as close_decoder,
    ):
        waiting = asyncio.create_task(anext(aiter(reserved(limiter, gib))))
        await asyncio.sleep(0)
        assert not waiting.done(), "large requests get three of the four GiB"
        close_decoder()
        await waiting


async def reserved(limiter: DecodingLimit, size: int) -> Iterator[None]:
    async with limiter.reserve(0, size):
        yield


async def test_a_clip_whose_decoder_exceeds_the_limit_is_refused():
    with pytest.raises(TooLarge, match=r"decoding takes up to 5.0 GiB; at most 4 GiB"):
        async with DecodingLimit(20).reserve(2**30, 4 * 2**30):
            pass


class HoldingJudge(FakeJudge):
    """A judge that holds large clips until an event."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.release = 0, threading.Event()

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        if clip.total == LARGE_FRAMES:
            self.held += 1
            await asyncio.to_thread(self.release.wait)
        return await super().judge(task_text, clip, backend_kwargs)


def test_requests_that_wait_for_memory_leave_permits_to_small_ones(clips: dict[str, Path]):
    judge = HoldingJudge()
    with served(judge, max_in_flight=2) as client, ThreadPoolExecutor(4) as pool:
        large = [pool.submit(score, client, clips["h264"], f"large {n}") for n in range(4)]
        try:
            wait_until(lambda: judge.held > 0, 60)
            for n in range(5):
                assert score(client, SMALL, f"small {n}", timeout=30) == 200
        finally:
            judge.release.set()
        assert [each.result() for each in large] == [200] * 4


def score(client: httpx.Client, path: Path, task: str, timeout: float = 3500) -> int:
    # A part after the last makes the content another one: nothing is cached.
    part = (8 + len(task)).to_bytes(4, "big") + b"free" + task.encode()
    video = path.read_bytes() + part
    answer = client.post(
        "/score", data={"task_text": task}, files={"video": ("a.mp4", video)}, timeout=timeout
    )
    return answer.status_code


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_64_clips_with_large_decoders_stay_within_the_limit(tmp_path: Path):
    """Ten of such clips took 10.7 GB."""
    heavy = write_clip(tmp_path / "heavy.mp4", "h264", 4096, 2304, 24)
    with (
        service_process("video", "--set", "deadline_s=3400") as (process, url),
        httpx.Client(base_url=url, trust_env=False, limits=httpx.Limits()) as client,
        ThreadPoolExecutor(64) as pool,
    ):
        assert score(client, SMALL, "first") == 200
        idle, peak = pss(process.pid), 0
        large = [pool.submit(score, client, heavy, f"large {n}") for n in range(64)]
        overtaking = 0
        while not all(each.done() for each in large):
            peak = max(peak, pss(process.pid))
            waiting = sum(not each.done() for each in large)
            assert score(client, SMALL, f"small {time.monotonic()}") == 200
            overtaking += waiting > 32
        assert [each.result() for each in large] == [200] * 64
    print(f"idle {idle / 2**20:.0f} MiB, peak {peak / 2**20:.0f} MiB, overtaking {overtaking}")
    assert peak - idle < 4 * 2**30
    assert overtaking >= 20


def pss(pid: int) -> int:
    """Return the memory of a process, with its share of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
