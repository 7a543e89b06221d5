"""A user's own judge, by the seed's contract."""

import argparse
import os
from pathlib import Path

import pytest

from rewardfleet_server.cli import main
from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import LONG_CLIP, client_of, picture

TASK = "put the bowl on the plate"

MODULE = """
import asyncio, threading
import cv2

calls = []

class Backend:
    def __init__(self, args):
        self.args = args
    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        capture = cv2.VideoCapture(video_path)
        calls.append((task_text, video_path, nframes, max_pixels, backend_kwargs,
                      int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), capture.get(cv2.CAP_PROP_FPS),
                      threading.current_thread().name))
        return 0.75, "looks fine"

class AsyncBackend:
    async def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        await asyncio.sleep(0)
        calls.append(threading.current_thread().name)
        return 0.25, "looked at it on the loop"

class Answering:
    def __init__(self, answer):
        self.answer = answer
    def score_video(self, *args):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

def build_backend(args):
    return Backend(args)
def build_async(args):
    return AsyncBackend()
def build_nothing(args):
    return object()
def build_broken(args):
    raise RuntimeError("no GPU")
answer = None
def build_answering(args):
    return Answering(answer)
seen = []
def build_seeing(args):
    seen.append(args)
    return Backend(args)
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


def test_a_path_goes_to_it_as_it_is(custom, module, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(LONG_CLIP.read_bytes())
    with client_of(custom()) as client:
        body = {"task_text": TASK, "video_path": "clip.mp4", "nframes": 5, "max_pixels": 1000}
        answer = client.post("/score", json={**body, "backend_kwargs": {"a": [1]}}).json()
    assert (answer["score"], answer["model_output"]) == (0.75, "looks fine")
    assert (answer["backend"], answer["components"]) == ("mine", {})
    [call] = __import__(module).calls
    assert call[:5] == (TASK, str(tmp_path / "clip.mp4"), 5, 1000, {"a": [1]})
    assert call[7].startswith("custom-judge"), "a plain function runs in a thread"


def test_frames_and_uploads_go_to_it_as_a_temporary_mp4(custom, module, tmp_path):
    with client_of(custom()) as client:
        frames = [picture(level=level) for level in range(0, 200, 20)]
        body = {"task_text": TASK, "frames_base64": frames, "fps": 10, "nframes": 4}
        assert client.post("/score", json=body).status_code == 200
        upload = {"video": ("clip.mp4", LONG_CLIP.read_bytes())}
        assert client.post("/score", data={"task_text": TASK}, files=upload).status_code == 200
    calls = __import__(module).calls
    assert [call[5] for call in calls] == [4, 308]
    assert [call[6] for call in calls] == pytest.approx([10 * 3 / 9, 20], abs=0.01), (
        "at the true rate"
    )
    for call in calls:
        wait_until(lambda path=call[1]: not os.path.exists(path))
        assert call[1].endswith(".mp4")


def test_an_async_one_runs_on_the_loop(custom, module, make_video):
    with client_of(custom("build_async")) as client:
        body = {"task_text": TASK, "video_path": str(make_video(3))}
        assert client.post("/score", json=body).json()["score"] == 0.25
    [thread] = __import__(module).calls
    assert not thread.startswith("custom-judge")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("the model is gone"), "the model is gone"),
        ((1.5, "x"), "[0, 1]"),
        ((-0.1, "x"), "[0, 1]"),
        ((float("nan"), "x"), "[0, 1]"),
        (("0.5", "x"), "[0, 1]"),
        ((True, "x"), "[0, 1]"),
        ((None, "x"), "[0, 1]"),
        ((0.5, None), "a text"),
        (0.5, "(score, raw_output_text)"),
        (None, "(score, raw_output_text)"),
        ((0.5, "x", 3), "(score, raw_output_text)"),
    ],
    ids=repr,
)
def test_what_it_raises_or_returns_wrongly_is_a_failure(custom, module, make_video, answer, said):
    __import__(module).answer = answer
    with client_of(custom("build_answering")) as client:
        answer = client.post("/score", json={"task_text": TASK, "video_path": str(make_video(3))})
    assert answer.status_code == 502
    assert answer.json()["kind"] == "backend_failed"
    assert said in answer.json()["detail"]


def test_its_answers_are_not_cached(custom, module, make_video):
    with client_of(custom()) as client:
        body = {"task_text": TASK, "video_path": str(make_video(3))}
        assert [client.post("/score", json=body).json()["cached"] for _ in range(2)] == [False] * 2
    assert len(__import__(module).calls) == 2


def test_the_factory_gets_the_seeds_flags(custom, module):
    create_app(custom("build_seeing", model_path="/models/x", temperature=0.5, port=18081))
    [args] = __import__(module).seen
    assert isinstance(args, argparse.Namespace)
    expected = {
        "backend": "mine",
        "model_path": "/models/x",
        "host": "127.0.0.1",
        "port": 18081,
        "temperature": 0.5,
        "gpu_ids": "0,1",
        "tensor_parallel_size": 2,
        "max_model_len": 16384,
        "gpu_memory_utilization": 0.8,
        "top_p": 0.001,
        "max_tokens": 64,
        "primo_tensor_parallel_size": 1,
        "primo_max_model_len": 16384,
    }
    assert {name: getattr(args, name) for name in expected} == expected
    assert args.custom_backend_factory == f"{module}:build_seeing"


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("none", "none"),
        ("build_nothing", "no score_video"),
        ("not_a_function", "not callable"),
        ("build_broken", "no GPU"),
    ],
)
def test_a_factory_that_does_not_work_is_told_at_start(module, capsys, factory, said):
    command = ["serve", "video", "--backend", "mine", "--custom-backend-factory"]
    assert main([*command, f"{module}:{factory}"]) == 2
    assert said in capsys.readouterr().err
    assert main([*command, "no_such_module:build"]) == 2
    assert main([*command, "nocolon"]) == 2


def test_several_judges_in_one_process(custom, make_video):
    settings = custom(backend=["mine", "reference"])
    with client_of(settings) as client:
        assert client.get("/health").json() == {
            "status": "ok",
            "default_backend": "mine",
            "loaded_backends": ["mine", "reference"],
        }
        body = {"task_text": TASK, "video_path": str(make_video(20))}
        answers = client.post(
            "/score/batch",
            json={"items": [body, {**body, "backend": "reference"}, {**body, "backend": "mine"}]},
        ).json()
    assert [result["backend"] for result in answers["results"]] == ["mine", "reference", "mine"]
    assert set(answers["provenance"]) == {"mine", "reference"}


def test_a_video_with_odd_sides_is_written_too(custom, module):
    with client_of(custom()) as client:
        frames = [picture(33, 17), picture(33, 17)]
        assert (
            client.post("/score", json={"task_text": TASK, "frames_base64": frames}).status_code
            == 200
        )
    assert __import__(module).calls[0][5] == 2
