"""The judge `openai` with vLLM's own OpenAI server."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rewardfleet_server.up.settings import free_port
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.openai import _REMEDY, OpenAIJudge
from rewardfleet_server.video.judges.vlm.prompt_layouts import AsOneVideo
from rewardfleet_server.video.prompts import YES_OR_NO
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import client_of
from ..running import running
from .conftest import (
    CLIPS,
    ENVIRONMENT,
    TASK,
    VIDEOS,
    load_judge,
    serving_video,
    unseen_frames,
)

#: The flags that the error names.
FLAGS = shlex.split(re.findall(r"vLLM with (.*);", _REMEDY)[0])

#: The marks of a template around a video of Qwen3-VL, and what docs/judges.md replaces them by.
MARKS = ("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>")


@contextmanager
def serving_vllm(folder: Path, log: Path, *flags: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--max-model-len", "8192", "--mm-processor-cache-gb", "0"),
        # Its rounding would differ between equal requests.
        *("--no-enable-prefix-caching", *flags),
    ]
    with running(command, f"{url}/health", log=log, seconds=400, env=ENVIRONMENT):
        yield f"{url}/v1"


@pytest.fixture(scope="module", params=["checkpoint", "checkpoint3"])
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def endpoint(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, flags = tmp_path_factory.mktemp("openai"), [*FLAGS]
    if model.name.startswith("qwen3"):
        template = (model / "chat_template.jinja").read_text().replace(*MARKS)
        (folder / "template.jinja").write_text(template)
        flags += ["--chat-template", str(folder / "template.jinja")]
    with serving_vllm(model, folder / "log", *flags) as url:
        yield url


@pytest.mark.parametrize("media", ["images", "video"])
@pytest.mark.parametrize("readout", ["structured", "text", "probability"])
def test_the_judge_openai_works_with_vllm(tmp_path: Path, endpoint: str, media: str, readout: str):
    """A random model writes any number where it must, else none; its probabilities are unsure."""
    with serving_video(
        tmp_path / "log",
        *("--backend", "openai", "--openai-url", endpoint, "--openai-model", "tiny"),
        *("--set", f"media={media}", "--set", f"readout={readout}"),
    ) as service:
        answer = service.score(nframes=8).json()
    assert answer["backend"] == "openai", answer
    output = {"structured": r'{\s*"score"', "text": "token limit", "probability": "labels have|cut"}
    assert re.search(output[readout], answer["model_output"])
    assert (answer["status"] == "abstained") or readout == "structured"
    assert answer["provenance"]["shown"] == "proved"
    honored = {"structured": ["response_format"], "probability": ["logprob_token_ids"]}
    assert answer["provenance"]["honored"] == honored.get(readout, [])


@pytest.mark.parametrize("media", ["images", "video"])
async def test_noise_in_any_frame_changes_the_answer(endpoint: str, videos: list[Path], media: str):
    settings = VideoSettings(openai_url=endpoint, openai_model="tiny", set=[f"media={media}"])
    judge = find_judge("openai", settings)
    assert isinstance(judge, OpenAIJudge)

    async def judged(clip: Clip) -> object:
        more = {"temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
        return (await judge._ask(YES_OR_NO, TASK, clip, more)).logprobs

    async with judge.lifespan():
        assert await unseen_frames(videos, judged) == []
        assert judge.outage is None


async def test_the_model_gets_the_tokens_of_a_judge_in_this_process(
    endpoint: str, model: Path, videos: list[Path]
):
    """Of frames whose sides are multiples of the model's patches, which nothing resizes."""
    settings = VideoSettings(openai_url=endpoint, openai_model="tiny", set=["media=video"])
    judge, in_process = find_judge("openai", settings), load_judge("transformers", model)
    async with judge.lifespan():
        for frames in (2, 16):
            clip = decode_video(str(videos[0]), DecodeSpec(frames, 224 * 224))
            more = {"max_tokens": 1, "return_token_ids": True}
            answer = await judge._ask(YES_OR_NO, TASK, clip, more)
            shown = AsOneVideo().full_prompt(clip, YES_OR_NO.render(TASK), None)
            checkpoint = in_process._checkpoint
            prepared, prompt = checkpoint.geometry.prepare(shown), checkpoint.prompt(shown)
            assert answer.prompt_token_ids == in_process._engine.tokens(prepared, prompt)


def test_vllm_without_the_flags_is_found_out(tmp_path: Path, checkpoint: Path):
    """It shows 4 of 16 frames of a video, and all images."""
    with serving_vllm(checkpoint, tmp_path / "vllm") as url:
        for media, status in (("video", 502), ("images", 200)):
            own = {"openai_url": url, "openai_model": "tiny", "set": [f"media={media}"]}
            with client_of(create_app(VideoSettings(**own, video_root=[VIDEOS]))) as client:
                body = {"task_text": TASK, "video_path": CLIPS[0], "nframes": 8}
                answer = client.post("/score", json=body)
                assert answer.status_code == status, answer.text
                assert (client.get("/readyz").status_code == 200) == (status == 200)
            assert status == 200 or "about 4 of 16 frames" in answer.json()["detail"]
