"""Faults of recordings, in real rollouts to which a recorder adds frames."""

import base64
import io
import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from rewardfleet import blocking
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video
from rewardfleet_server.video.clip.recording import Recording
from rewardfleet_server.video.judges import Judgment

from ...conftest import DATA, served

LIBERO = DATA / "libero"
TASK = "put the bowl on the stove"
ROLLOUTS = [json.loads(line) for line in (LIBERO / "manifest.jsonl").read_text().splitlines()]


@cache
def rollout(*, success: bool) -> np.ndarray:
    """Return all frames of a rollout of the task, small and read-only."""
    file = next(r["file"] for r in ROLLOUTS if r["task_text"] == TASK and r["success"] == success)
    frames = np.stack(decode_video(str(LIBERO / file), DecodeSpec(1000, 96 * 96)).frames)
    frames.flags.writeable = False
    return frames


FAILURE, SUCCESS = rollout(success=False), rollout(success=True)
END = len(FAILURE)
NOISE = np.random.default_rng(0).integers(0, 256, (40, *FAILURE.shape[1:]), np.uint8)
#: A camera with noise.
NOISY = np.clip(FAILURE[:40].astype(int) + NOISE // 16 - 8, 0, 255).astype(np.uint8)


def dimmed(frames: np.ndarray) -> np.ndarray:
    return np.concatenate([frames[:50], frames[50:] // 2])


#: Clips, the fault and its frame if there is one, and whether `trim` ends the clip before it.
CLIPS = {
    "leaked": ([FAILURE, SUCCESS[-1:]], "cut", END, False),
    "leaked at the start": ([SUCCESS[-1:], FAILURE[20:]], "cut", 1, False),
    "reset": ([FAILURE, FAILURE[:1]], "reset", END, True),
    "joined": ([FAILURE, SUCCESS], "reset", END, True),
    "black": ([FAILURE, 0 * FAILURE[:1]], "blank", END, True),
    "gray": ([FAILURE, 0 * FAILURE[:20] + 128], "blank", END, True),
    "noise": ([FAILURE, NOISE[:3]], "blank", END, True),
    "black at first": ([0 * FAILURE[:10], FAILURE], "blank", 0, False),
    "black once": ([FAILURE[:50], 0 * FAILURE[:1], FAILURE[50:]], "blank", 50, False),
    "frozen": ([NOISY, np.repeat(NOISY[-1:], 20, 0)], "frozen", 39, False),
    "natural": ([FAILURE], None, None, False),
    "noise alone": ([NOISE], None, None, False),
    "still": ([FAILURE, np.repeat(FAILURE[-1:], 60, 0)], None, None, False),
    "a lamp": ([dimmed(FAILURE)], None, None, False),
    "dropped": ([np.delete(FAILURE, [20, 40, 41, 70], 0)], None, None, False),
    "few frames": ([FAILURE[::8], SUCCESS[-1:]], None, None, False),
}


def mp4(frames: np.ndarray, seconds: list[float] | None = None) -> bytes:
    """Return a video file, with the frames at these times."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("h264", rate=20, options={"crf": "20", "preset": "fast"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for index, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.time_base = Fraction(1, 1000)
            picture.pts = round(1000 * (index / 20 if seconds is None else seconds[index]))
            output.mux(stream.encode(picture))
        output.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "frames"])
@pytest.mark.parametrize("mode", ["abstain", "trim", "judge"])
def test_a_fault_is_reported_and_the_setting_decides_what_is_judged(mode: str, as_file: bool):
    judge = FakeJudge(0.75)
    with (
        served(judge, recording_faults=mode) as client,
        blocking.RewardFleet(video=str(client.base_url)) as fleet,
    ):
        for name, (parts, kind, frame, is_end) in CLIPS.items():
            frames, seen = np.concatenate(parts), len(judge.seen)
            if as_file and name == "frozen":  # an encoder removes most noise
                continue
            # The client sends as many frames as the judge sees.
            clip = mp4(frames) if as_file else frames[-128:]
            start = 0 if as_file else max(0, len(frames) - 128)
            if frame is not None and frame < start:
                continue
            score = fleet.video.score(TASK, clip, nframes=16 if as_file else 128)
            is_judged = kind is None or mode == "judge" or (mode == "trim" and is_end)
            assert len(judge.seen) - seen == is_judged, name
            assert (score.score, score.status) == (
                (0.75, "ok") if is_judged else (None, "abstained")
            )
            if kind is None:
                assert (score.suspicions, score.details) == ([], {}), name
                continue
            assert score.details[f"{kind}_frame"] == frame - start, name
            assert score.suspicions[0].startswith(f"frame {frame - start}: {kind}: "), name
            assert (score.cause == "recording_fault") is not is_judged
            total = frame if mode == "trim" and is_end else len(frames)
            if is_judged:
                assert judge.seen[-1][-1] == total - 1 - start, name
            assert score.suspicions[0].endswith("judged up to it") is (mode == "trim" and is_end)


class FileJudge(FakeJudge):
    """A judge that counts the frames of the files that it gets."""

    async def judge_file(self, task_text, path, nframes, max_pixels, backend_kwargs):
        with av.open(path) as video:
            self.seen.append((sum(1 for _ in video.decode(video=0)),))
        return Judgment(self.score, "")


@pytest.mark.parametrize(("mode", "seen"), [("abstain", []), ("trim", [16]), ("judge", [END + 1])])
def test_a_judge_that_reads_files_gets_no_frames_that_are_left_out(mode: str, seen: list[int]):
    judge = FileJudge(0.75)
    files = {"video": ("clip.mp4", mp4(np.concatenate([FAILURE, FAILURE[:1]])), "video/mp4")}
    with served(judge, recording_faults=mode) as client:
        answer = client.post("/score", data={"task_text": TASK}, files=files).json()
    assert [count for (count,) in judge.seen] == seen
    assert answer["score"] == (0.75 if seen else None)
    assert answer["details"] == {"reset_frame": END}


def test_missing_time_is_a_fault(tmp_path: Path):
    seconds = [index / 20 for index in range(60)]
    for gap, faults in ((0.5, []), (3.0, ["gap"])):
        path = tmp_path / "clip.mp4"
        path.write_bytes(mp4(FAILURE[:60], [s + gap * (s >= 1.5) for s in seconds]))
        recording = Recording()
        decode_video(str(path), DecodeSpec(16, 9216, recording=recording))
        assert [fault.kind[:3] for fault in recording.faults] == faults


def test_images_are_checked_and_trimmed():
    judge = FakeJudge()
    images = [
        base64.b64encode(av.VideoFrame.from_ndarray(f, format="rgb24").to_image()._repr_png_())
        for f in np.concatenate([FAILURE[::10], 0 * FAILURE[:3]])
    ]
    body = {"task_text": TASK, "frames_base64": [image.decode() for image in images]}
    with served(judge, recording_faults="trim") as client:
        answer = client.post("/score", json={**body, "nframes": 128}).json()
    assert answer["details"]["blank_frame"] == len(images) - 3 == len(judge.seen[0])


def test_real_rollouts_have_no_fault():
    for each in ROLLOUTS[::2]:
        recording = Recording()
        decode_video(str(LIBERO / each["file"]), DecodeSpec(1, 784, recording=recording))
        assert recording.faults == [], each["file"]
