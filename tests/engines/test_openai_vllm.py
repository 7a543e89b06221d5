"""The judge `openai` with vLLM's own OpenAI server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from .conftest import ENVIRONMENT, RunningService, serving_video


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("openai") / "log"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--max-model-len", "8192", "--mm-processor-cache-gb", "0"),
    ]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=ENVIRONMENT)
    try:
        wait_until(lambda: _answers(port) or process.poll() is not None, 400)
        assert process.poll() is None, log.read_text()[-3000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(90)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("media", ["images", "video"])
@pytest.mark.parametrize("readout", ["text", "probability"])
def test_the_judge_openai_works_with_vllm(
    tmp_path: Path, endpoint: str, videos: list[Path], media: str, readout: str
):
    """A random model abstains: its text has no score, and its probabilities are unsure."""
    with serving_video(
        tmp_path / "log",
        *("--backend", "openai", "--openai-url", endpoint, "--openai-model", "tiny"),
        *("--set", f"media={media}", "--set", f"readout={readout}"),
    ) as running:
        answer = _score(running, videos[0])
    assert answer["backend"] == "openai"
    assert answer["status"] == "abstained"
    assert ("lies between" if readout == "probability" else "token limit") in answer["model_output"]


def _score(running: RunningService, video: Path) -> dict:
    answer = running.score(video_path=str(video), nframes=8)
    assert answer.status_code == 200, answer.text
    body: dict = answer.json()
    return body
