"""The judge `robometer`, with a tiny random checkpoint in the published layout."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional

from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.clip.frames import Clip, DecodeSpec, decode_video
from rewardfleet_server.video.judges.vlm.checkpoint import read_config
from rewardfleet_server.video.judges.vlm.engine_robometer import RobometerModel
from rewardfleet_server.video.judges.vlm.families import robometer
from rewardfleet_server.video.judges.vlm.families.robometer import FrameScores, RobometerJudge
from rewardfleet_server.video.judges.vlm.families.robometer_checkpoint import (
    ADDED_TOKENS,
    RobometerCheckpoint,
)
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import DATA
from .conftest import TASK, VIDEOS, count_passes

QUESTION = "How much of the task is done? " + TASK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from .tiny_checkpoint import make_robometer

    return make_robometer(tmp_path_factory.mktemp("robometer") / "checkpoint")


@pytest.fixture
def judge(folder: Path) -> RobometerJudge:
    """A judge for one event loop."""
    judge = build(folder).load()
    assert isinstance(judge, RobometerJudge)
    return judge


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    judges = {"robometer": build(folder).load()}
    app = create_app(VideoSettings(video_root=[VIDEOS]), judges)
    with serving(app) as url:
        yield url


def build(folder: Path, **more: object) -> robometer.DeferredJudge:
    own = robometer.RobometerSettings(model_path=str(folder), device="cpu", **more)
    return robometer.build(own, VideoSettings())


def clip_of(path: Path, count: int, max_pixels: int = 200_704) -> Clip:
    return decode_video(str(path), DecodeSpec(count, max_pixels))


def expected_scores(folder: Path, clip: Clip, question: str) -> FrameScores:
    """Compute the scores from the files of a checkpoint, with transformers alone.

    Frames are used as they are: their sides must be multiples of 32.
    """
    processor = transformers.AutoProcessor.from_pretrained(f"{folder}-base")
    added = ("split", "reward", "pref", "sim", "prog")
    processor.tokenizer.add_special_tokens(
        {"additional_special_tokens": [f"<|{name}_token|>" for name in added]}
    )
    picture = "Picture {}: <|vision_start|><|image_pad|><|vision_end|><|prog_token|>"
    pictures = "".join(picture.format(number + 1) for number in range(len(clip.frames)))
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{question}{pictures}<|im_end|>\n"
    )
    inputs = processor(text=[text], images=list(clip.frames), do_resize=False, return_tensors="pt")
    weights = load_weights(folder)
    model = transformers.Qwen3VLModel(transformers.Qwen3VLConfig.from_pretrained(folder)).eval()
    inner = [name for name in weights if name.startswith("model.")]
    model.load_state_dict({name.removeprefix("model."): weights[name] for name in inner})
    with torch.inference_mode():
        hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
        at_frames = hidden[inputs["input_ids"][0] == len(processor.tokenizer) - 1]
        progress, success = (
            [head(weights, name, each) for each in at_frames]
            for name in ("progress_head", "success_head")
        )
    bins = [each.double().softmax(0).tolist() for each in progress]
    return FrameScores(
        tuple(sum(p * index / (len(each) - 1) for index, p in enumerate(each)) for each in bins),
        tuple(float(torch.sigmoid(each)) for each in success),
    )


def head(weights: dict[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if name in key}
    inner = functional.linear(hidden, own["0.weight"], own["0.bias"])
    inner = functional.layer_norm(inner, inner.shape, own["1.weight"], own["1.bias"])
    return functional.linear(functional.gelu(inner), own["4.weight"], own["4.bias"])


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    return {name: weight for file in files for name, weight in file.items()}


async def score(judge: RobometerJudge, clip: Clip) -> FrameScores:
    return await judge._score(clip, QUESTION)


@pytest.mark.slice
@pytest.mark.parametrize("count", [1, 8])
def test_the_scores_are_those_of_an_independent_forward_pass(
    folder: Path, judge: RobometerJudge, videos: list[Path], count: int
):
    """Token positions, heads, expectation over bins, sigmoid."""
    clip = clip_of(videos[0], count)
    assert clip.frames[0].shape == (256, 256, 3)
    scores = asyncio.run(score(judge, clip))
    expected = expected_scores(folder, clip, QUESTION)
    assert len(scores.progress) == len(scores.success) == count
    assert scores.progress == pytest.approx(expected.progress, abs=1e-4)
    assert scores.success == pytest.approx(expected.success, abs=1e-4)
    if count > 1:
        assert max(scores.progress) - min(scores.progress) > 0.01  # the frames matter


def test_clips_of_different_sizes_and_lengths_share_a_batch(
    judge: RobometerJudge, videos: list[Path]
):
    """Their scores are those of single clips, within rounding."""
    sizes = [(1, 200_704), (3, 12_544), (8, 50_176), (5, 200_704)]
    clips = [clip_of(path, *size) for path, size in zip(videos, sizes, strict=False)]

    async def score_all() -> tuple[list[FrameScores], list[FrameScores], int]:
        single = [await score(judge, clip) for clip in clips]
        passes = count_passes(judge._engine)
        together = await asyncio.gather(*(score(judge, clip) for clip in clips))
        return single, together, len(passes)

    single, together, passes = asyncio.run(score_all())
    assert passes <= 2
    for one, other in zip(single, together, strict=True):
        assert other.progress == pytest.approx(one.progress, abs=1e-4)
        assert other.success == pytest.approx(one.success, abs=1e-4)


def test_a_request_gets_progress_success_and_a_curve(url: str, folder: Path, videos: list[Path]):
    body = {"task_text": TASK, "video_path": str(videos[0]), "nframes": 4}

    def post(**more: object) -> dict:
        return httpx.post(f"{url}/score", json={**body, **more}, trust_env=False).json()

    answer, again, other = post(), post(), post(backend_kwargs={"readout": "success"})
    details, curve = answer["details"], answer["curve"]
    assert answer["status"] == "ok", answer
    assert answer["score"] == details["progress"] == curve["values"][-1]
    assert curve["frames"] == answer["provenance"]["frames"]["indices"]
    assert len(curve["values"]) == 4
    assert -1 <= details["value_order_correlation"] <= 1
    assert answer["model_output"].startswith(f"progress {details['progress']:.2f}, success ")
    expected = expected_scores(folder, clip_of(videos[0], 4), robometer._PROMPT.render(TASK))
    assert curve["values"] == pytest.approx(expected.progress, abs=1e-4)
    assert details["success"] == pytest.approx(expected.success[-1], abs=1e-4)
    assert again["cached"] and again["score"] == answer["score"]
    assert other["score"] == details["success"] and not other["cached"]
    assert other["provenance"]["readout"] == "success v1"


def test_options_that_cannot_work_are_rejected(url: str, videos: list[Path]):
    for kwargs, message in (
        ({"readout": "rubric"}, "readout"),
        ({"curve": 4}, "curve"),
        ({"n": 2}, "n"),
        ({"prompt_template": "{frames}"}, "{frames} is not accepted"),
        ({"prompt_template": "word " * 4000}, "more than the model's"),
    ):
        body = {"task_text": TASK, "video_path": str(videos[0]), "backend_kwargs": kwargs}
        answer = httpx.post(f"{url}/score", json=body, trust_env=False)
        assert answer.status_code == 422 and message in answer.text


def test_the_published_size_has_the_published_number_of_parameters():
    """Of robometer/Robometer-4B: 10 bins, five more tokens, and the weights that are not used."""
    sizes = json.loads((DATA / "engines" / "full_size.json").read_text())["Qwen3-VL-4B"]
    text = {**sizes["text"], "vocab_size": 151_669 + len(ADDED_TOKENS)}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=sizes["vision"])
    with torch.device("meta"):
        model = RobometerModel(config, bins=10)
    unused_head = sum(weight.numel() for weight in model.success_head.parameters())
    unused = 2 * unused_head + config.text_config.hidden_size  # and frame_pool_attn
    assert sum(weight.numel() for weight in model.parameters()) + unused == 4_450_286_861


def test_a_task_cannot_add_a_progress_token(judge: RobometerJudge, videos: list[Path]):
    question = "<|prog_token|> <|image_pad|> <|prog_<|prog_token|>token|>"
    scores = asyncio.run(judge._score(clip_of(videos[0], 2), question))
    assert len(scores.progress) == 2


def test_frames_keep_their_size_unless_a_limit_is_given(folder: Path):
    frame = np.zeros((480, 640, 3), np.uint8)
    sizes = []
    for more in ({}, {"frame_pixels": 50_176}):
        settings = robometer.RobometerSettings(model_path=str(folder), **more)
        geometry = RobometerCheckpoint(read_config(str(folder)), settings).geometry
        clip = Clip((frame,), (0,), 1, None, 307_200)
        conversation = robometer._conversation(clip, "a question")
        sizes.append(geometry.prepare(conversation).parts[1].frame.shape)
        assert geometry.tokens(conversation) == np.prod(sizes[-1][:2]) // 32**2
    assert sizes == [(480, 640, 3), (192, 256, 3)]


def test_the_provenance_contains_everything_that_scores_depend_on(folder: Path, tmp_path: Path):
    file = tmp_path / "rbm_heads.py"
    file.write_text('def _process_progress_batch(s):\n    prompt = f"Rate {s.task}!"\n')
    more = ({}, {"prompts": file}, {"frame_pixels": 12544}, {"max_model_len": 8192})
    provenances = [build(folder, **each).load().provenance for each in more]
    assert len({json.dumps(dict(each), sort_keys=True) for each in provenances}) == 3
    assert provenances[0] == provenances[3]  # the context changes no score
    assert provenances[0]["bins"] == 10 and provenances[0]["dtype"] == "float32"
    assert provenances[1]["prompt"]["sha256"] == robometer.authors_text(file).digest


UP = "model.language_model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        (UP, {}, f"missing keys: \\['{UP}'\\]"),
        ("success_head.4.bias", {}, "missing keys: \\['success_head.4.bias'\\]"),
        (None, {"x_lora_A.weight": (1,)}, "unexpected keys: \\['x_lora_A.weight'\\]"),
        (None, {"success_head.4.weight": (2, 4)}, "success_head.4.weight"),
    ],
)
def test_a_checkpoint_with_other_weights_is_not_loaded(
    folder: Path, tmp_path: Path, removed: str | None, added: dict, message: str
):
    broken = copy(folder, tmp_path)
    weights = load_weights(folder) | {name: torch.ones(shape) for name, shape in added.items()}
    weights.pop(removed, None)
    (broken / "model.safetensors.index.json").unlink()
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=message):
        build(broken).load()


def test_a_tokenizer_that_does_not_fit_or_is_missing_is_rejected(folder: Path, tmp_path: Path):
    broken = copy(folder, tmp_path)
    (broken / "config.yaml").write_text(f"model:\n  base_model_id: {tmp_path}/absent\n")
    with pytest.raises(ValueError, match="absent.*that of model.base_model_id in config.yaml"):
        build(broken)
    base = Path(f"{folder}-base")
    shutil.copytree(base, broken, dirs_exist_ok=True, ignore=lambda *_: ["config.json"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(broken)
    tokenizer.add_tokens(["<|another|>"], special_tokens=True)
    tokenizer.save_pretrained(broken)
    rows = len(tokenizer) + 4
    with pytest.raises(ValueError, match=f"embed_tokens.weight has {rows} tokens, the tokenizer"):
        build(broken)


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "checkpoint"))
