"""Real engines with tiny random checkpoints, behind real servers in separate processes."""

import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.vlm.judge import VlmJudge
from rewardfleet_server.video.settings import VideoSettings

from ..running import own_environment, running
from ..server.processes import descendants, is_zombie

VIDEOS = Path(__file__).parent.parent / "data" / "libero" / "videos"
CLIPS = sorted(map(str, VIDEOS.glob("*.mp4")))
TASK = "put both the alphabet soup and the tomato sauce in the basket"
_START_SECONDS = 400.0

#: Nothing is downloaded, and there is no GPU.
ENVIRONMENT = {
    **own_environment(),
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@pytest.fixture(scope="module")
def in_process() -> Iterator[None]:
    """Set the environment of an engine within the process of a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("REWARDFLEET_ENGINE_PROCESS", "VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE"):
            patch.setenv(name, "1")
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        yield


def load_judge(name: str, folder: Path, *own: str, **more: object) -> VlmJudge:
    """Return a judge with these settings of its own and of the service, in this process."""
    settings = VideoSettings(backend=[name], model_path=str(folder), set=[*own], **more)
    deferred = find_judge(name, settings)
    assert isinstance(deferred, DeferredJudge)
    judge = deferred.load()
    assert isinstance(judge, VlmJudge)
    return judge


def count_passes(engine: Any) -> list[int]:
    """Return a list that gets an item for each forward pass of the model from now on."""
    passes: list[int] = []
    engine._model.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


@pytest.fixture(scope="session")
def videos() -> list[Path]:
    return [*map(Path, CLIPS)]


@pytest.fixture(scope="session")
def clip(videos: list[Path]) -> Clip:
    return decode_video(str(videos[0]), DecodeSpec(16, 200_704))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from .tiny_checkpoint import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("qwen2_5"))


@pytest.fixture(scope="session")
def checkpoint3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from .tiny_checkpoint import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3_vl")


def next_logprobs(
    folder: Path, prompt: str | list, clip: Clip, frames: np.ndarray, **options: object
) -> tuple[Any, Any]:
    """Return the tokenizer, and the log-probabilities of the next token, by transformers alone.

    The prompt is a text, or messages, with one video, which shows the first frames of the clip.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from transformers.video_utils import VideoMetadata

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    if isinstance(prompt, list):
        prompt = processor.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    indices = list(clip.indices[: len(frames)])
    metadata = VideoMetadata(clip.total, fps=clip.fps, frames_indices=indices)
    options |= {"do_sample_frames": False, "return_tensors": "pt"}
    inputs = processor(text=[prompt], videos=[frames], video_metadata=[metadata], **options)
    with torch.inference_mode():
        return processor.tokenizer, model(**inputs).logits[0, -1].log_softmax(-1)


async def unseen_frames(videos: list[Path], judged: Callable[[Clip], Awaitable[Any]]) -> list[str]:
    """Return the frames in which noise does not change what is judged, of short and long clips."""
    noise = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    unseen = []
    for count in (1, 2, 5, 16, 33):
        clip = decode_video(str(videos[0]), DecodeSpec(count, 12_544))
        assert clip.frames[0].shape == noise.shape
        plain = await judged(clip)
        assert plain == await judged(clip)
        for index in range(count):
            frames = (*clip.frames[:index], noise, *clip.frames[index + 1 :])
            if await judged(replace(clip, frames=frames)) == plain:
                unseen.append(f"{index} of {count}")
    return unseen


@dataclass(frozen=True)
class RunningService:
    """A service in a separate process, and a client of it."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    log: Path

    def score(self, backend: str | None = None, video: int = 0, **body: object) -> httpx.Response:
        """Score a rollout, by its number, unless the body has a clip of its own."""
        has_clip = body.keys() & {"video_base64", "frames_base64"}
        clip = {} if has_clip else {"video_path": CLIPS[video]}
        options = {"task_text": TASK, "backend": backend, "max_pixels": 12544, **clip, **body}
        return self.client.post("/score", json=options)

    def judge(self, backend: str | None = None, video: int = 0, **kwargs: object) -> dict[str, Any]:
        """Return the score of a rollout with these `backend_kwargs`."""
        answer = self.score(backend, video, backend_kwargs=kwargs)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def engines(self) -> list[int]:
        """Return the ids of vLLM's processes, the engine core first."""
        found = sorted(descendants(self.process.pid))
        return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::")]


def in_flight(url: str) -> float:
    metrics = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    return float(re.findall(r"^rewardfleet_admitted_requests{.* (.*)$", metrics, re.MULTILINE)[0])


@contextmanager
def serving_video(log: Path, *flags: object) -> Iterator[RunningService]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "rewardfleet_server", "serve", "video", "--port", port]
    command += ["--video-root", VIDEOS, *flags]
    leftover: set[int] = set()
    with (
        running(
            command, f"{url}/readyz", log=log, seconds=_START_SECONDS, env=ENVIRONMENT
        ) as process,
        httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
    ):
        try:
            yield RunningService(process, client, log)
        finally:
            leftover = descendants(process.pid)
    wait_until(lambda: all(map(is_zombie, leftover)), 60)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[RunningService]:
    """All three judges in one service; PRIMO-R1 may generate 48 tokens."""
    log = tmp_path_factory.mktemp("service") / "log"
    backends = ("qwen2_5_vl_vllm", "PRIMO-R1", "transformers")
    with serving_video(
        log,
        *(flag for name in backends for flag in ("--backend", name)),
        *("--model-path", checkpoint, "--max-model-len", 8192, "--set", "cache_mb=0"),
        *("--set", "PRIMO-R1.max_tokens=48"),
        *("--set", "qwen2_5_vl_vllm.enforce_eager=true", "--set", "PRIMO-R1.enforce_eager=true"),
        *("--set", "transformers.device=cpu"),
        # Of a random model, all tokens have the same small probability.
        *("--set", "qwen2_5_vl_vllm.min_label_mass=0", "--set", "transformers.min_label_mass=0"),
    ) as running:
        yield running
