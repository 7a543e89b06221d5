"""Engines that die, services that are killed, and models that cannot be loaded."""

import concurrent.futures
import json
import os
import signal
from pathlib import Path

import httpx
import numpy as np
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.judges.loading import find_judge, load_judges
from rewardfleet_server.video.settings import VideoSettings

from .conftest import RunningService, alive, in_flight, serving_video


def test_a_dead_engine_ends_the_service_and_fails_its_requests(
    service: RunningService, videos: list[Path]
):
    """Requests in flight are `unavailable`, and the process exits with status 1."""
    url = str(service.client.base_url)

    # One client for all: making one takes so long that some requests would end before others begin.
    def score(number: int) -> httpx.Response:
        body = {"task_text": f"{number}", "video_path": str(videos[number]), "nframes": 64}
        return service.client.post("/score", json=body)

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
    tmp_path: Path, checkpoint3: Path, videos: list[Path]
):
    """Qwen3-VL at a temperature gives mean and spread. Then the service is killed."""
    with serving_video(
        tmp_path / "log",
        *("--model-path", checkpoint3, "--max-model-len", 4096),
        *("--set", "temperature=1.5", "--set", "top_p=1"),
        *("--set", "readout=constrained", "--set", "enforce_eager=true"),
    ) as running:
        answer, again = (
            running.score(video_path=str(videos[0]), backend_kwargs={"n": 8}).json()
            for _ in range(2)
        )
        engines = running.engines()
        assert engines
        running.process.kill()
        wait_until(lambda: not any(map(alive, engines)), 60)
    numbers = [int(text) / 100 for text in answer["model_output"].split("\n---\n")]
    assert len(set(numbers)) > 1
    assert answer["score"] == pytest.approx(np.mean(numbers))
    assert answer["details"]["spread"] == pytest.approx(np.std(numbers))
    assert answer["details"]["samples"] == 8
    assert again["cached"] is False and again["model_output"] != answer["model_output"]


def settings(folder: Path, **given: object) -> VideoSettings:
    return VideoSettings(model_path=str(folder), **given)


def copy(checkpoint: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_model_that_vllm_cannot_load_is_rejected_at_start(tmp_path: Path, checkpoint: Path):
    folder = copy(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    with pytest.raises(ValueError, match="--model-path .*: vLLM could not load it: .*NoSuchModel"):
        load_judges(settings(folder))


def test_damaged_weights_are_rejected_at_start(tmp_path: Path, checkpoint: Path):
    folder = copy(checkpoint, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match="--model-path .* on the device cpu"):
        load_judges(settings(folder, backend=["transformers"], set=["device=cpu"]))


def test_a_device_that_does_not_exist_is_rejected_at_start(checkpoint: Path):
    with pytest.raises(ValueError, match="on the device tpu9"):
        load_judges(settings(checkpoint, backend=["transformers"], set=["device=tpu9"]))


def test_gpus_that_do_not_exist_are_rejected_before_anything_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # restored after the test
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ValueError, match="--gpu-ids 7: CUDA finds 0 of these GPUs"):
        load_judges(settings(checkpoint, gpu_ids="7"))


def test_a_context_without_room_for_a_question_is_rejected_before_anything_is_loaded(
    checkpoint: Path,
):
    with pytest.raises(ValueError, match="max_model_len 120: readout .*: the frames take"):
        find_judge("qwen2_5_vl_vllm", settings(checkpoint, max_model_len=120, set=["max_tokens=8"]))
