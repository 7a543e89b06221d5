"""A judge that the user provides, by the protocol of the original LIBERO reward server."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.testing import wait_until
from rewardfleet_server.video import settings as settings_module
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video
from rewardfleet_server.video.judges.loading import load_judges
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import DATA, LONG_CLIP, image_base64, served_with, table

TASK = "put the bowl on the plate"

MODULE = """
import asyncio, json, os, sys, threading
from decimal import Decimal
from fractions import Fraction

import numpy as np

def record(*values):
    with open(__file__ + ".calls", "a") as file:
        file.write(json.dumps(values) + "\\n")

class Backend:
    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        import cv2
        capture = cv2.VideoCapture(video_path)
        record(task_text, video_path, nframes, max_pixels, backend_kwargs,
               int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), capture.get(cv2.CAP_PROP_FPS),
               threading.current_thread().name)
        return 0.75, "looks fine"

class AsyncBackend:
    async def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        await asyncio.sleep(0)
        record(threading.current_thread().name)
        return 0.25, "judged on the event loop"

class Reading:
    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        import cv2
        capture, frames = cv2.VideoCapture(video_path), []
        while (read := capture.read())[0]:
            frames.append(read[1][..., ::-1])
        np.save(__file__ + ".npy", frames)
        return 0.5, video_path

RESULTS = {
    "1.5": (1.5, "x"), "-0.1": (-0.1, "x"), "nan": (float("nan"), "x"), "text": ("0.5", "x"),
    "true": (True, "x"), "no text": (0.5, None), "one": 0.5, "three": (0.5, "x", 3),
    "bytes": (0.5, b"x"), "np.bool": (np.bool_(True), "x"), "np.nan": (np.float32("nan"), "x"),
    "array": (np.array([0.5]), "x"), "complex": (np.complex64(0.5), "x"), "nobody": (None, None),
    "np.float32": (np.float32(0.5), "x"), "np.float16": (np.float16(0.5), "x"),
    "0-d": (np.array(0.5), "x"), "np.int64": (np.int64(1), "x"), "fraction": (Fraction(1, 2), "x"),
    "decimal": [Decimal("0.5"), "x"], "null": (None, "too dark"), "none": None,
    "masked": (np.ma.masked, "x"),
}

class Returning:
    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        if task_text == "raise":
            raise RuntimeError("the model is gone")
        return RESULTS[task_text]

build_backend = lambda args: Backend()
build_async = lambda args: AsyncBackend()
build_reading = lambda args: Reading()
build_nothing = lambda args: object()
def build_broken(args):
    raise RuntimeError("no GPU")
def build_exiting(args):
    sys.exit("no license")
def build_dying(args):
    os._exit(3)
build_returning = lambda args: Returning()
def build_recording(args):
    record(type(args).__name__, vars(args), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Backend()
not_a_function = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch):
    name = f"my_judges_{os.getpid()}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def custom(module: str, tmp_path: Path):
    def start(factory: str = "build_backend", **settings):
        settings = {"backend": ["mine"], "video_root": [tmp_path], **settings}
        return VideoSettings(custom_backend_factory=f"{module}:{factory}", **settings)

    return start


@pytest.fixture
def calls(module: str, tmp_path: Path):
    """Return what the judge has recorded."""

    def read() -> list[list[Any]]:
        lines = (tmp_path / f"{module}.py.calls").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return read


def load_and_close(settings: VideoSettings) -> None:
    for judge in load_judges(settings).values():
        judge._child.kill()
        judge._child.wait()


@pytest.mark.slow
def test_it_gets_the_path_of_the_request(custom, calls, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(LONG_CLIP.read_bytes())
    with served_with(custom()) as client:
        body = {"task_text": TASK, "video_path": "clip.mp4", "nframes": 5, "max_pixels": 1000}
        answer = client.post("/score", json={**body, "backend_kwargs": {"a": [1]}}).json()
    assert (answer["score"], answer["model_output"]) == (0.75, "looks fine")
    assert (answer["backend"], answer["details"]) == ("mine", {})
    [call] = calls()
    assert call[:5] == [TASK, str(tmp_path / "clip.mp4"), 5, 1000, {"a": [1]}]
    assert call[7].startswith("custom-judge"), "a plain function runs in a thread"


@pytest.mark.slow
def test_it_gets_frames_and_uploads_as_a_temporary_mp4(custom, calls, tmp_path):
    with served_with(custom()) as client:
        # Their sides are odd, those of encoders' frames are even.
        frames = [image_base64(33, 17, level=level) for level in range(0, 200, 20)]
        body = {"task_text": TASK, "frames_base64": frames, "fps": 10, "nframes": 4}
        assert client.post("/score", json=body).status_code == 200
        upload = {"video": ("clip.mp4", LONG_CLIP.read_bytes())}
        assert client.post("/score", data={"task_text": TASK}, files=upload).status_code == 200
    recorded = calls()
    assert [call[5] for call in recorded] == [4, 308]
    real_time = pytest.approx([10 * 3 / 9, 20], abs=0.01)
    assert [call[6] for call in recorded] == real_time
    for call in recorded:
        wait_until(lambda path=call[1]: not os.path.exists(path))
        assert call[1].endswith(".mp4")


#: Files of several writers; OpenCV has no decoder of AV1.
FILES = [name for name, _ in table("frames_of_writers") if name != "lerobot_av1.mp4"]
#: Those of which any decoder shows the frames that the service shows.
PLAIN = {"ffmpeg_vp9.mp4", "gst_hevc.mov", "gst_mp4mux.mp4", "gst_qtmux.mov"}
PLAIN |= {"imageio.mp4", "moviepy.mp4", "opencv.mp4"}


@pytest.mark.slow
def test_it_reads_the_frames_that_the_service_shows(custom, module, tmp_path):
    """Of rotated files, with edit lists, a variable rate, and cut ones, it gets a copy."""
    # Their pictures jump.
    settings = custom("build_reading", video_root=[DATA / "mp4"], recording_faults="judge")
    with served_with(settings) as client:
        for name in FILES:
            path, is_plain = DATA / "mp4" / name, name in PLAIN
            shown = decode_video(str(path), DecodeSpec(128, 200_704)).frames
            upload = {"data": {"task_text": TASK}, "files": {"video": ("a", path.read_bytes())}}
            for sent in (upload, {"json": {"task_text": TASK, "video_path": name}}):
                answer = client.post("/score", **sent)
                assert answer.status_code == 200, answer.text
                frames = np.load(tmp_path / f"{module}.py.npy")
                assert frames.shape == np.shape(shown), name
                assert np.abs(frames - np.array(shown, int)).mean() < 8, name
            assert (answer.json()["model_output"] == str(path)) is is_plain, name


def test_an_async_function_runs_on_the_event_loop_and_scores_are_not_cached(
    custom, calls, make_video
):
    with served_with(custom("build_async")) as client:
        body = {"task_text": TASK, "video_path": str(make_video(3))}
        answers = [client.post("/score", json=body).json() for _ in range(2)]
    assert [(each["score"], each["cached"]) for each in answers] == [(0.25, False)] * 2
    assert calls() == [["MainThread"]] * 2


def test_results_are_scores_or_failures(custom, make_video):
    """Numbers of libraries are scores, and None is an abstention."""
    path = str(make_video(3))
    with served_with(custom("build_returning")) as client:
        for task, expected in table("custom_results"):
            answer = client.post("/score", json={"task_text": task, "video_path": path})
            score = answer.json()
            if isinstance(expected, str):
                assert (answer.status_code, score["kind"]) == (502, "backend_failed"), task
                assert expected in score["detail"]
            else:
                assert [score["score"], score["status"], score["model_output"]] == expected, task


#: Options of the original server, with their defaults.
ORIGINAL = dict(table("original_options"))
#: Its other options.
OTHERS = """backend custom_backend_factory port temperature prompt_template
    primo_gpu_memory_utilization primo_temperature primo_system_prompt primo_user_prompt"""


def test_the_factory_gets_all_options_of_the_original_server(custom, module, calls):
    given = {"temperature": 0.5, "primo_top_p": 0.5, "primo_max_tokens": 16}
    given |= {"prompt_template": "Is this done: {task}?", "primo_user_prompt": "{task}?"}
    given |= {"primo_system_prompt": "Think."}
    pairs = [f"{name}={value}" for name, value in given.items()]
    load_and_close(custom("build_recording"))
    load_and_close(custom("build_recording", port=18081, set=pairs))
    (type_name, default, _), (_, explicit, _) = calls()
    assert type_name == "Namespace" and len({*ORIGINAL, *OTHERS.split()}) == 21
    assert default.items() >= ORIGINAL.items()
    assert all(default[name] is not None for name in OTHERS.split())
    for name in ("prompt_template", "primo_user_prompt"):
        assert "{task}" in default[name]
    own = {"port": 18081, "custom_backend_factory": f"{module}:build_recording", "backend": "mine"}
    assert explicit.items() >= (given | own).items()


def test_the_factory_gets_settings_of_its_own(custom, calls):
    load_and_close(custom("build_recording", set=["threshold=0.5", "device=cpu"]))
    [(_, args, _)] = calls()
    assert (args["threshold"], args["device"]) == ("0.5", "cpu")
    with pytest.raises(ValueError, match="mine.port: the service has this setting: give --set po"):
        load_and_close(custom("build_recording", set=["mine.port=1"]))
    with pytest.raises(ValueError, match="mine.max_tokens=x: invalid literal for int"):
        load_and_close(custom("build_recording", set=["max_tokens=x"]))


@pytest.fixture
def visible_gpus(monkeypatch: pytest.MonkeyPatch):
    """Sets or deletes `CUDA_VISIBLE_DEVICES`, restored after the test; CUDA finds all of them."""
    monkeypatch.setattr(settings_module, "gpu_count", lambda: None)

    def set_variable(value: str | None) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value or "")
        if value is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    return set_variable


@pytest.mark.parametrize(("before", "gpu_ids", "seen"), table("visible_gpus"))
def test_gpus_are_selected_before_the_factory_is_called(
    custom, calls, visible_gpus, *, before, gpu_ids, seen
):
    """`--gpu-ids` indexes the GPUs that a scheduler allows; without it nothing is changed."""
    visible_gpus(before)
    load_and_close(custom("build_recording", **({"gpu_ids": gpu_ids} if gpu_ids else {})))
    [(_, _, variable)] = calls()
    assert variable == seen


@pytest.mark.parametrize(("before", "gpu_ids"), [("4,5", "2"), ("", "0")])
def test_gpus_that_a_scheduler_does_not_allow_are_refused(custom, visible_gpus, before, gpu_ids):
    visible_gpus(before)
    with pytest.raises(ValueError, match=f"--gpu-ids {gpu_ids}: CUDA_VISIBLE_DEVICES lists"):
        load_and_close(custom(gpu_ids=gpu_ids))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == before


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "message"), table("failing_factories"))
def test_a_factory_that_fails_ends_the_command(module, capsys, factory, message):
    command = ["serve", "video", "--port=0", "--backend=mine", "--custom-backend-factory"]
    assert main([*command, factory.format(module=module)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_one_process_has_several_judges(custom, make_video):
    settings = custom(backend=["mine", "reference"])
    with served_with(settings) as client:
        loaded = {"default_backend": "mine", "loaded_backends": ["mine", "reference"]}
        assert client.get("/health").json() == {"status": "ok", **loaded}
        body = {"task_text": TASK, "video_path": str(make_video(20))}
        items = [body, {**body, "backend": "reference"}, {**body, "backend": "mine"}]
        answers = client.post("/score/batch", json={"items": items}).json()
    assert [result["backend"] for result in answers["results"]] == ["mine", "reference", "mine"]
    assert set(answers["provenance"]) == {"mine", "reference"}
