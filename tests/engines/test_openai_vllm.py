"""The judge `openai` with vLLM's own OpenAI server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardfleet_server.up.settings import free_port

from ..running import running
from .conftest import ENVIRONMENT, serving_video


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("openai") / "log"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--max-model-len", "8192", "--mm-processor-cache-gb", "0"),
    ]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/health", log=log, seconds=400, env=ENVIRONMENT):
        yield f"{url}/v1"


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
    ) as service:
        answer = service.score(video_path=str(videos[0]), nframes=8).json()
    assert (answer["backend"], answer["status"]) == ("openai", "abstained"), answer
    assert ("lies between" if readout == "probability" else "token limit") in answer["model_output"]
