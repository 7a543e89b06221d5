"""Labels behind thoughts and marks: a tiny model that writes them, on each engine."""

from pathlib import Path

import pytest

from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.openai import OpenAIJudge
from rewardfleet_server.video.settings import VideoSettings

from .conftest import TASK, load_judge
from .test_openai_vllm import serving_vllm
from .tiny_checkpoint import make_thinker


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinker(tmp_path_factory.mktemp("thinker"))


@pytest.mark.parametrize("judge", ["qwen2_5_vl_vllm", "transformers"])
@pytest.mark.usefixtures("in_process")
async def test_labels_are_found_behind_thoughts_and_marks(judge: str, thinker: Path, clip: Clip):
    """It answers `<think>no</think>"Yes`, with 0.8; or its template begins the thoughts."""
    engine = "enforce_eager=true" if judge == "qwen2_5_vl_vllm" else "device=cpu"
    loaded = load_judge(judge, thinker, "readout=probability", "max_tokens=16", engine)
    async with loaded.lifespan():
        judgments = [await loaded.judge(TASK, clip, {})]
        processor = loaded._checkpoint.processor
        processor.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
        del loaded._thinks
        judgments.append(await loaded.judge(TASK, clip, {}))
        curve = await loaded.judge("<think> <|im_end|>", clip, {"curve": 2})
    assert curve.curve is not None
    scores = [*(each.score for each in judgments), *curve.curve.values]
    assert scores == pytest.approx([0.8] * 4, abs=0.01)
    assert [each.details["label_mass"] for each in judgments] == pytest.approx([1] * 2, abs=0.01)
    assert judgments[0].text == '<think>no</think>"Yes'


async def test_an_endpoint_gives_the_same(thinker: Path, clip: Clip, tmp_path: Path):
    """By values of the labels that vLLM is asked for."""
    with serving_vllm(thinker, tmp_path / "log") as url:
        own = ["readout=probability", "max_tokens=16"]
        judge = find_judge("openai", VideoSettings(openai_url=url, openai_model="tiny", set=own))
        assert isinstance(judge, OpenAIJudge)
        async with judge.lifespan():
            judgment = await judge.judge(TASK, clip, {})
            assert judge.provenance["honored"] == ["logprob_token_ids"]
    assert judgment.score == pytest.approx(0.8, abs=0.01)
    assert judgment.details == {"label_mass": pytest.approx(1, abs=0.01)}
