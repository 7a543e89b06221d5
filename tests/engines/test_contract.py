"""The judges with a model keep the contract of all judges."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.factory import (
    primo_setup,
    qwen_on_transformers,
    qwen_on_vllm,
)
from rewardfleet_server.video.judges.vlm.judge import VlmJudge
from rewardfleet_server.video.settings import VideoSettings

from ..contract.test_judges import (
    NEED_ENGINES,
    TASK,
    Clip,
    Judgment,
    test_it_judges_many_clips_at_once,
    test_it_reads_frames_not_files,
    test_it_refuses_options_that_it_does_not_know,
    test_one_that_calls_itself_deterministic_is,
    test_what_it_depends_on_is_json_and_stays,
)

__all__ = [
    "test_it_judges_many_clips_at_once",
    "test_it_reads_frames_not_files",
    "test_it_refuses_options_that_it_does_not_know",
    "test_one_that_calls_itself_deterministic_is",
    "test_what_it_depends_on_is_json_and_stays",
]

# vLLM's engine lives in one event loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=sorted(NEED_ENGINES), scope="module", loop_scope="module")
async def judge(request: pytest.FixtureRequest, checkpoint: Path) -> AsyncIterator[VlmJudge]:
    patch = pytest.MonkeyPatch()
    for name in ("REWARDFLEET_ENGINE", "VLLM_NO_USAGE_STATS", "VLLM_WORKER_MULTIPROC_METHOD"):
        patch.setenv(name, "1" if "METHOD" not in name else "spawn")
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = VideoSettings(
        model_path=str(checkpoint),
        device="cpu",
        readout="text" if request.param == "PRIMO-R1" else "constrained",
        max_model_len=8192,
        enforce_eager=True,
        primo_temperature=0.0,
        primo_max_tokens=16,
        max_tokens=6000,  # which takes longer than any test waits
    )
    make = qwen_on_vllm if request.param == "qwen2_5_vl_vllm" else qwen_on_transformers
    judge = make(settings).load()
    assert isinstance(judge, VlmJudge)
    if request.param == "PRIMO-R1":  # its view and readout; vLLM is held to the rest already
        model = Checkpoint(str(checkpoint))
        judge = VlmJudge(primo_setup(settings), model, judge._engine, judge._prepare, "once")
    async with judge.lifespan():
        yield judge
    patch.undo()


async def test_it_gives_a_judgment(judge: VlmJudge, clip: Clip):
    """A random PRIMO-R1 abstains."""
    judgment = await judge.judge(TASK, clip, {})
    assert isinstance(judgment, Judgment) and judgment.text
    if judge.provenance["judge"] == "PRIMO-R1":
        assert judgment.score is None
    else:
        assert judgment.score is not None and 0 <= judgment.score <= 1


async def test_a_caller_who_leaves_takes_his_request_out_of_vllms_batch(
    judge: VlmJudge, clip: Clip
):
    """Long before its 6000 tokens would be said."""
    if type(judge._engine).__name__ != "VllmEngine":
        return
    requests = judge._engine._engine.output_processor.get_num_unfinished_requests
    asking = asyncio.ensure_future(judge.judge(TASK, clip, {"readout": "text"}))
    async with asyncio.timeout(10):
        while requests() == 0:
            await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(2):
        while requests() > 0:
            await asyncio.sleep(0.01)
    assert asking.cancelled() or asking.done()
