"""`make bench-recordings [FOLDERS=A:B]`: faults of recordings that are found, and false alarms.

Each folder has clips of a source, one episode each; the default is that of the tests. Clips are
checked as they are, and under what is natural: a lamp that is switched, something that passes in
front of the camera, dropped frames. Then frames are added that no policy makes, mostly of the other
clip whose first picture is nearest; each such clip is encoded again. A fault that changes a picture
by less than a gray level on average is left out. docs/benchmarks/recordings.md has the results.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
from harness import Ratio, medians_in_turns, run, seconds_of
from items import CLIP, VIDEOS
from numpy.typing import NDArray

from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video
from rewardfleet_server.video.clip.recording import Fault, Recording, small_picture

SIDE = 128  # of frames that are encoded again, in pixels
FEWEST = 8  # frames of a clip
FOLDERS = [Path(each) for each in (os.environ.get("FOLDERS") or str(VIDEOS)).split(os.pathsep)]

Frames = NDArray[np.uint8]


def frames_of(path: Path) -> Frames:
    """Return all frames of a clip, scaled down, `[T, H, W, 3]`."""
    clip = decode_video(str(path), DecodeSpec(20_000, SIDE**2))
    height, width = (side - side % 2 for side in clip.frames[0].shape[:2])
    return np.stack(clip.frames)[:, :height, :width]


def faults_of(frames: Frames) -> Sequence[Fault]:
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        with av.open(file.name, "w", format="mp4") as mp4:
            stream = mp4.add_stream("libx264", rate=20, options={"preset": "veryfast"})
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt, stream.codec_context.thread_count = "yuv420p", 1
            for index, frame in enumerate(frames):
                picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
                picture.pts, picture.time_base = index, Fraction(1, 20)
                mp4.mux(stream.encode(picture))
            mp4.mux(stream.encode(None))
        recording = Recording()
        decode_video(file.name, DecodeSpec(1, SIDE**2, recording=recording))
    return recording.faults


def natural(frames: Frames, rng: np.random.Generator) -> Iterator[tuple[str, Frames]]:
    """Yield what may happen to a clip without a fault."""
    total, height, width, _ = frames.shape
    start = int(rng.integers(2, total - 2))
    dimmed = frames.copy()
    dimmed[start:] = (dimmed[start:] * rng.uniform(0.4, 0.8)).astype(np.uint8)
    yield "a lamp is switched", dimmed
    passed = frames.copy()
    for step, frame in enumerate(passed[start : start + 8]):  # a hand, in and out
        reach = (min(step, 7 - step) + 1) * width // 8
        frame[height // 4 : height * 3 // 4, :reach] = (90, 70, 60)
    yield "something passes", passed
    kept = rng.random(total) > 0.1
    kept[start : start + 2] = False
    yield "frames are dropped", frames[kept]


def faulty(
    frames: Frames, other: Frames, rng: np.random.Generator
) -> Iterator[tuple[str, int, Frames]]:
    """Yield a clip with each fault, and the first frame of the fault."""
    total, tail = len(frames), int(rng.integers(1, 6))
    blank = np.full((tail, *frames.shape[1:]), rng.choice([0, 128, 255]), np.uint8)
    noise = rng.integers(0, 256, blank.shape, dtype=np.uint8)
    joined = {
        "leaked": other[-tail:],
        "reset": frames[:tail],
        "joined": other,
        "blank": blank if rng.random() < 0.8 else noise,
    }
    for name, added in joined.items():
        yield name, total, np.concatenate([frames, added])


@cache
def clips(folder: Path) -> list[Frames]:
    found = (frames_of(path) for path in sorted(folder.glob("*.mp4")))
    return [frames for frames in found if len(frames) >= FEWEST]


def source(folder: Path) -> Iterator[Ratio]:
    """Count the alarms and the faults that are found in the clips of a folder."""
    rng, found, tried = np.random.default_rng(0), {}, {}
    paths = sorted(folder.glob("*.mp4"))

    def count(name: str, *, is_found: bool) -> None:
        tried[name] = tried.get(name, 0) + 1
        found[name] = found.get(name, 0) + is_found

    for path in paths:
        recording = Recording()
        decode_video(str(path), DecodeSpec(1, SIDE**2, recording=recording))
        count("false alarms: as it is", is_found=bool(recording.faults))
        if recording.faults:
            print(path.name, *recording.faults, sep="\n  ")
    all_frames = clips(folder)
    firsts = np.stack([small_picture(frames[0]) for frames in all_frames]).astype(np.int16)
    for index, frames in enumerate(all_frames):
        for name, changed in natural(frames, rng):
            count(f"false alarms: {name}", is_found=bool(faults_of(changed)))
        far = np.abs(firsts - firsts[index]).mean(axis=(1, 2))
        far[[each.shape[1:] != frames.shape[1:] for each in all_frames]] = far[index] = np.inf
        for name, at, changed in faulty(frames, all_frames[int(far.argmin())], rng):
            last, first = (small_picture(changed[each]).astype(int) for each in (at - 1, at))
            if np.abs(last - first).mean() >= 1:
                count(name, is_found=any(fault.frame == at for fault in faults_of(changed)))
    for name, total in tried.items():
        limit = "<= 0.005" if name.startswith("false") else ">= 0.98"
        yield Ratio(f"{folder.name}: {name}; of", found[name], total, limit)


def cost() -> Iterator[Ratio]:
    def decode(recording: Recording | None) -> float:
        spec = DecodeSpec(16, 200_704, recording=recording)
        return seconds_of(lambda: decode_video(str(CLIP), spec), time.process_time) * 1000

    ours, other = medians_in_turns(lambda: decode(Recording()), lambda: decode(None), rounds=30)
    yield Ratio("ms of CPU to decode 308 frames; without the check", ours, other, "<= 1.15")


def sources() -> Iterator[Ratio]:
    for folder in FOLDERS:
        yield from source(folder)


if __name__ == "__main__":
    run({"cost": cost, "sources": sources})
