"""The judges with a model fulfill the contract of all judges."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from rewardfleet_server.video.judges.vlm.families.primo_r1 import PrimoSettings, judge_spec
from rewardfleet_server.video.judges.vlm.judge import VlmJudge

from ..contract.test_judges import (  # noqa: F401 - tests are run here as well
    NEED_ENGINES,
    TASK,
    Clip,
    Judgment,
    test_it_judges_clips_concurrently,
    test_it_rejects_unknown_options,
    test_its_provenance_is_json_and_its_judgments_repeat,
)
from .conftest import load_judge, unseen_frames

# vLLM's engine works in one event loop only.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=sorted(NEED_ENGINES), scope="module", loop_scope="module")
async def judge(
    request: pytest.FixtureRequest, checkpoint: Path, in_process: None
) -> AsyncIterator[VlmJudge]:
    is_vllm = request.param == "qwen2_5_vl_vllm"
    name = "qwen2_5_vl_vllm" if is_vllm else "transformers"
    readout = "readout=text" if request.param == "PRIMO-R1" else "readout=constrained"
    engine = "enforce_eager=true" if is_vllm else "device=cpu"
    longest = "max_tokens=6000"  # takes longer than any test waits
    judge = load_judge(name, checkpoint, readout, engine, longest, max_model_len=8192)
    if request.param == "PRIMO-R1":  # its layout and readout, on the engine loaded already
        spec = judge_spec(PrimoSettings(temperature=0.0, max_tokens=16))
        judge = VlmJudge(spec, judge._checkpoint, judge._engine)
    async with judge.lifespan():
        yield judge


@pytest.mark.slice
async def test_it_returns_a_judgment(judge: VlmJudge, clip: Clip):
    """A random PRIMO-R1 abstains."""
    judgment = await judge.judge(TASK, clip, {})
    assert isinstance(judgment, Judgment) and judgment.text
    assert (judgment.score is None) == (judge.provenance["judge"] == "PRIMO-R1")
    assert judgment.score is None or 0 <= judgment.score <= 1


async def test_noise_in_any_frame_changes_the_answer(judge: VlmJudge, videos: list[Path]):
    """PRIMO-R1 has the same engine, and no probabilities."""
    if judge.provenance["judge"] == "PRIMO-R1":
        return

    params = judge._spec.readouts["probability"].generation_params(judge._spec.sampling, 1)

    async def judged(clip: Clip) -> object:
        prompt = judge._spec.layout.full_prompt(clip, TASK, None)
        (completion,) = await judge._run(prompt, replace(params, max_tokens=1))
        return completion.positions

    assert await unseen_frames(videos, judged) == []


async def test_a_cancelled_request_is_removed_from_vllms_batch(judge: VlmJudge, clip: Clip):
    """Long before its 6000 tokens are generated."""
    if type(judge._engine).__name__ != "VllmEngine":
        return
    requests = judge._engine._engine.output_processor.get_num_unfinished_requests
    judging = asyncio.ensure_future(judge.judge(TASK, clip, {"readout": "text"}))
    async with asyncio.timeout(60):
        while requests() == 0:
            await asyncio.sleep(0.01)
    judging.cancel()
    async with asyncio.timeout(10):
        while requests() > 0:
            await asyncio.sleep(0.01)
    assert judging.cancelled() or judging.done()
