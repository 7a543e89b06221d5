"""The judge `robometer`, without a model: checks of its checkpoint, and the authors' prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.vlm.families.robometer import authors_text
from rewardfleet_server.video.judges.vlm.families.robometer_checkpoint import read_layout
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import DATA, table

CONFIG: dict[str, Any] = dict(table("checkpoint_configs"))["robometer"]
YAML = (DATA / "video" / "robometer.yaml").read_text()
EMBEDDING = "model.language_model.embed_tokens.weight"


def head(outputs: int) -> dict[str, list[int]]:
    layers = {"0.weight": [4, 8], "0.bias": [4], "1.weight": [4], "1.bias": [4]}
    return {**layers, "4.weight": [outputs, 4], "4.bias": [outputs]}


def published_weights(bins: int = 10) -> dict[str, list[int]]:
    """The names and shapes of a published checkpoint, with few layers."""
    heads = {"progress": bins, "success": 1, "preference": 1, "similarity": 1}
    weights = {
        EMBEDDING: [105, 8],
        "model.language_model.norm.weight": [8],
        "model.visual.patch_embed.proj.weight": [8, 3, 2, 16, 16],
        "frame_pool_attn.weight": [1, 8],
    }
    for name, outputs in heads.items():
        weights |= {f"{name}_head.{key}": shape for key, shape in head(outputs).items()}
    return weights


def write(folder: Path, weights: dict[str, list[int]], config: dict = CONFIG) -> Path:
    """Write a checkpoint whose weights have names and shapes only."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "config.yaml").write_text(YAML)
    write_header(folder / "model.safetensors", weights)
    return folder


def write_header(file: Path, weights: dict[str, list[int]]) -> None:
    tensors = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in weights.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


def test_the_layout_of_the_published_checkpoint_is_read(tmp_path: Path):
    layout = read_layout(str(write(tmp_path, published_weights())), CONFIG)
    assert (layout.folder, layout.bins, layout.tokens) == (tmp_path, 10, 105)
    assert layout.processor == "Qwen/Qwen3-VL-4B-Instruct"
    for name in ("tokenizer_config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text("{}")
    assert read_layout(str(tmp_path), CONFIG).processor == str(tmp_path)  # its own


def test_a_checkpoint_in_several_files_is_read(tmp_path: Path):
    weights = published_weights()
    write(tmp_path, weights)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    for number in (0, 1):
        own = {name: weights[name] for name in names[number::2]}
        write_header(tmp_path / f"model-{number}.safetensors", own)
    weight_map = {name: f"model-{names.index(name) % 2}.safetensors" for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert read_layout(str(tmp_path), CONFIG).bins == 10
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match="there is no model-1.safetensors"):
        read_layout(str(tmp_path), CONFIG)
    index.write_text("[]")
    with pytest.raises(ValueError, match="model.safetensors.index.json is damaged"):
        read_layout(str(tmp_path), CONFIG)


@pytest.mark.parametrize(("removed", "added", "message"), table("robometer_weights"))
def test_another_layout_is_rejected_with_the_names(
    tmp_path: Path, removed: str | None, added: dict, message: str
):
    published = published_weights()
    kept = {name: published[name] for name in published if not (removed and removed in name)}
    with pytest.raises(ValueError, match=message):
        find_judge("robometer", settings(write(tmp_path, kept | added)))


def test_another_family_is_rejected(tmp_path: Path):
    inner = {"type": "robometer", "vlm_config": CONFIG}
    for config, kind in (({**CONFIG, "model_type": "x"}, "'x'"), (inner, "None")):
        with pytest.raises(ValueError, match=f"model_type {kind}; robometer accepts"):
            find_judge("robometer", settings(write(tmp_path, published_weights(), config)))


@pytest.mark.parametrize(("old", "new", "message"), table("robometer_training"))
def test_a_checkpoint_that_was_trained_otherwise_is_rejected(
    tmp_path: Path, old: str, new: str, message: str
):
    write(tmp_path, published_weights())
    (tmp_path / "config.yaml").write_text(YAML.replace(old, new))
    with pytest.raises(ValueError, match=message):
        find_judge("robometer", settings(tmp_path))


def test_damaged_and_pickled_weights_are_not_read(tmp_path: Path):
    write(tmp_path, published_weights())
    short = b"\x02" + b"\0" * 7 + b"[]", b"\x07" + b"\0" * 7
    for content in (b"", b"\x80\x04pickle", b"\xff" * 100, *short):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="model.safetensors is damaged"):
            find_judge("robometer", settings(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no model.safetensors; robometer reads safetensors, no"):
        find_judge("robometer", settings(tmp_path))


METHOD = "class Collator:\n    def _process_progress_batch(self, samples):\n        "


def test_the_prompt_of_the_authors_is_read_from_their_file(tmp_path: Path):
    file = tmp_path / "rbm_heads.py"
    file.write_text(
        "raise SystemExit('executed')\n"
        "def other(sample):\n    prompt = f'{sample.task}?'\n"
        f"{METHOD}prompt = f\"Is '{{samples[0].trajectory.task}}' done? {{{{0 or 1}}}}\"\n"
    )
    prompt = authors_text(file)
    assert prompt.render("grasp {x}") == "Is 'grasp {x}' done? {0 or 1}"
    assert prompt.name == "robometer_authors"


def settings(folder: Path) -> VideoSettings:
    return VideoSettings(backend=["robometer"], model_path=str(folder))
