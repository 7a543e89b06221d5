"""Engines that die, services that are killed, and settings that cannot work."""

import concurrent.futures
import os
import signal
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.judges.vlm.build import qwen_on_transformers
from rewardfleet_server.video.settings import VideoSettings

from .conftest import Refused, alive, in_flight, serving_video


def test_a_dead_engine_ends_the_service_and_nobody_waits_in_vain(
    tmp_path: Path, checkpoint3: Path, videos: list[Path]
):
    """In flight: unavailable. Readiness: false. The process: exits with 1, for its supervisor."""
    log = tmp_path / "log"
    flags = ("--model-path", checkpoint3, "--max-model-len", 16384, "--max-tokens", 8000)
    with serving_video(log, *flags) as running:
        kwargs = {"readout": "probability"}
        answer = running.score(video_path=str(videos[0]), backend_kwargs=kwargs).json()
        assert answer["status"] == "ok"  # Qwen3-VL
        url = str(running.client.base_url)

        def ask(number: int) -> httpx.Response:
            body = {"task_text": f"{number}", "video_path": str(videos[number])}
            return httpx.post(f"{url}/score", json=body, timeout=60, trust_env=False)

        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            asked = [callers.submit(ask, number) for number in range(8)]
            wait_until(lambda: in_flight(url) == 8)
            os.kill(running.engines()[0], signal.SIGKILL)  # long before 8000 tokens are said
            answers = [future.result() for future in asked]
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["kind"] for answer in answers} == {"unavailable"}
        assert running.process.wait(20) == 1
        assert "the vLLM engine died" in log.read_text()


def test_no_engine_outlives_a_service_that_is_killed(tmp_path: Path, checkpoint: Path):
    with serving_video(
        tmp_path / "log", "--model-path", checkpoint, "--max-model-len", 4096
    ) as running:
        engines = running.engines()
        assert engines
        running.process.kill()
        wait_until(lambda: not any(map(alive, engines)))


@pytest.mark.parametrize("ids", ["7", "zero", "0,0"])
def test_gpus_that_do_not_exist_are_refused_at_start(checkpoint: Path, refused: Refused, ids: str):
    assert f"--gpu-ids {ids}" in refused("--model-path", checkpoint, "--gpu-ids", ids)


def test_weights_that_are_damaged_are_refused_at_start(
    tmp_path: Path, checkpoint: Path, refused: Refused
):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    said = refused("--model-path", folder, "--max-model-len", 4096, "--enforce-eager", seconds=120)
    assert "vLLM could not load it" in said
    settings = VideoSettings(_cli_parse_args=False, model_path=str(folder), device="cpu")
    with pytest.raises(ValueError, match="--model-path .* on --device cpu"):
        qwen_on_transformers(settings)


def test_a_device_that_does_not_exist_is_refused_at_start(checkpoint: Path):
    settings = VideoSettings(_cli_parse_args=False, model_path=str(checkpoint), device="tpu9")
    with pytest.raises(ValueError, match="--device tpu9"):
        qwen_on_transformers(settings)
