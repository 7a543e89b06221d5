"""Engines that die, services that are killed, and models that cannot be loaded."""

import concurrent.futures
import json
import os
import shutil
import signal
from pathlib import Path

import httpx
import numpy as np
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.judges.loading import find_judge, load_judges
from rewardfleet_server.video.settings import VideoSettings

from ..server.processes import is_zombie
from .conftest import RunningService, in_flight, serving_video


def test_a_dead_engine_ends_the_service_and_fails_its_requests(service: RunningService):
    """Requests in flight are `unavailable`, and the process exits with status 1."""
    url = str(service.client.base_url)

    # One client for all: making one takes so long that some requests would end before others begin.
    def score(number: int) -> httpx.Response:
        return service.score(video=number, task_text=f"{number}", nframes=64, max_pixels=200_704)

    with concurrent.futures.ThreadPoolExecutor(32) as callers:
        futures = [callers.submit(score, number) for number in range(32)]
        wait_until(lambda: in_flight(url) == 32, 60)
        os.kill(service.engines()[0], signal.SIGKILL)
        answers = [future.result() for future in futures]
    failed = [answer for answer in answers if answer.status_code != 200]
    assert len(failed) > 16
    assert {answer.status_code for answer in failed} == {503}
    assert {answer.json()["kind"] for answer in failed} == {"unavailable"}
    assert service.process.wait(90) == 1
    assert "the vLLM engine died" in service.log.read_text()


def test_samples_differ_and_no_engine_outlives_a_service_that_is_killed(
    tmp_path: Path, checkpoint3: Path
):
    """Qwen3-VL at a temperature gives mean and spread. Then the service is killed."""
    with serving_video(
        tmp_path / "log",
        *("--model-path", checkpoint3, "--max-model-len", 4096),
        *("--set", "temperature=1.5", "--set", "top_p=1"),
        *("--set", "readout=constrained", "--set", "enforce_eager=true"),
    ) as running:
        answer, again = (running.judge(n=8) for _ in range(2))
        engines = running.engines()
        assert engines
        running.process.kill()
        wait_until(lambda: all(map(is_zombie, engines)), 60)
    numbers = [int(text) / 100 for text in answer["model_output"].split("\n---\n")]
    assert len(set(numbers)) > 1
    assert answer["score"] == pytest.approx(np.mean(numbers))
    assert answer["details"]["spread"] == pytest.approx(np.std(numbers))
    assert answer["details"]["samples"] == 8
    assert again["cached"] is False and again["model_output"] != answer["model_output"]


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))


def damaged_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 100)


@pytest.fixture
def all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # restored after the test
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@pytest.mark.usefixtures("all_gpus")
@pytest.mark.parametrize(
    ("damage", "given", "message"),
    [
        (unknown_architecture, {}, "--model-path .*: vLLM could not load it: .*NoSuchModel"),
        (damaged_weights, {"set": ["device=cpu"]}, "--model-path .* on the device cpu"),
        (None, {"set": ["device=tpu9"]}, "on the device tpu9"),
        (None, {"gpu_ids": "7"}, "--gpu-ids 7: CUDA finds 0 of these GPUs"),
    ],
)
def test_what_cannot_be_loaded_is_rejected_at_start(
    tmp_path: Path, checkpoint: Path, damage, given, message
):
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    if damage:
        damage(folder)
    backend = ["transformers" if "set" in given else "qwen2_5_vl_vllm"]
    with pytest.raises(ValueError, match=message):
        load_judges(VideoSettings(backend=backend, model_path=str(folder), **given))


def test_a_context_without_room_for_a_question_is_rejected_before_anything_is_loaded(
    checkpoint: Path,
):
    given = {"model_path": str(checkpoint), "max_model_len": 120, "set": ["max_tokens=8"]}
    with pytest.raises(ValueError, match="max_model_len 120: readout .*: the frames take"):
        find_judge("qwen2_5_vl_vllm", VideoSettings(**given))
