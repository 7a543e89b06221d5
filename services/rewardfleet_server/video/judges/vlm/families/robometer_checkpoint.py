"""The published layout of Robometer checkpoints, checked before weights are loaded.

The layout is that of robometer/Robometer-4B: in safetensors, a Qwen3-VL without its language
head under `model.`, and small heads beside it; a `config.json` of the Qwen3-VL; the authors' own
`config.yaml`. There is no processor: it is that of the base model, with five more tokens.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rewardfleet.wire.optional_imports import require
from rewardfleet_server.video.judges.vlm import Conversation
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint
from rewardfleet_server.video.judges.vlm.settings import ModelSettings

#: The token after each frame at which the heads are read.
PROGRESS_TOKEN = "<|prog_token|>"  # noqa: S105 - not a password
#: The tokens that Robometer adds to those of its base model, in this order: their rows of the
#: embedding are at its end.
ADDED_TOKENS = (
    *("<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", PROGRESS_TOKEN),
)
_BASE_MODEL = "Qwen/Qwen3-VL-4B-Instruct"
_EMBEDDING = "model.language_model.embed_tokens.weight"
_BINS = "progress_head.4.weight"
#: Parts of the training that no judgment needs.
UNUSED_WEIGHTS = ("preference_head.", "similarity_head.", "frame_pool_attn.")
#: The values of config.yaml that this judge can run, by section and key.
_ACCEPTED = {
    ("model", "use_multi_image"): "true",
    ("model", "use_per_frame_progress_token"): "true",
    ("loss", "progress_loss_type"): "discrete",
}
#: The files that are read.
_FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors", "config.yaml")
_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  #: bytes of a safetensors header, as that library limits them


@dataclass(frozen=True)
class RobometerLayout:
    folder: Path
    bins: int  #: the bins into which progress is divided, 2 or more
    tokens: int  #: rows of the embedding
    processor: str  #: the folder or hub name of the processor


class RobometerCheckpoint(Checkpoint):
    """A Robometer checkpoint, without its weights; see `Checkpoint` and `read_layout`."""

    def __init__(self, config: Mapping[str, Any], own: ModelSettings) -> None:
        self.layout = read_layout(own.model_path or "", config)
        super().__init__(config, own)

    @cached_property
    def processor(self) -> Any:
        """The processor; a ValueError if its tokens are not those of the checkpoint."""
        try:
            processor = self.load_processor(self.layout.processor)
        except ValueError as error:
            raise ValueError(
                f"{error}; the processor is that of model.base_model_id in config.yaml, unless "
                "the checkpoint has its own"
            ) from error
        tokenizer = processor.tokenizer
        if tokenizer.convert_tokens_to_ids(PROGRESS_TOKEN) in {None, tokenizer.unk_token_id}:
            tokenizer.add_tokens(list(ADDED_TOKENS), special_tokens=True)
        if len(tokenizer) != self.layout.tokens:
            raise ValueError(
                f"--model-path {self.path}: {_EMBEDDING} has {self.layout.tokens} tokens, the "
                f"tokenizer of {self.layout.processor} {len(tokenizer)} with {PROGRESS_TOKEN}; "
                f"accepted: the tokenizer of the base model, and {', '.join(ADDED_TOKENS)}"
            )
        return processor

    @property
    def progress_token(self) -> int:
        """The id of the token after each frame."""
        return int(self.processor.tokenizer.convert_tokens_to_ids(PROGRESS_TOKEN))

    def prompt(self, conversation: Conversation) -> str:
        """Return a conversation in the model's chat template, with a token after each frame."""
        content: list[dict[str, str]] = []
        for part in conversation.parts:
            content.append(self._template_part(part))
            if not isinstance(part, str):
                content.append({"type": "text", "text": PROGRESS_TOKEN})
        prompt: str = self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=False,
            add_vision_id=True,  # numbers the frames, as in training
        )
        return prompt


def read_layout(path: str, config: Mapping[str, Any]) -> RobometerLayout:
    """Check the files of a checkpoint, or raise ValueError; one on a hub is downloaded first."""
    kind = config.get("model_type")
    if kind != "qwen3_vl":
        raise ValueError(
            f"--model-path {path}: config.json has model_type {kind!r}; robometer accepts qwen3_vl"
        )
    folder = _local_folder(path)
    options = _read_yaml_options(folder / "config.yaml")
    for key, accepted in _ACCEPTED.items():
        value = options.get(key, accepted)
        if value != accepted:
            raise ValueError(
                f"--model-path {path}: config.yaml has {'.'.join(key)}: {value}; "
                f"robometer accepts {accepted}"
            )
    weights, shapes = _read_shapes(path, folder)
    try:  # the names and shapes of all weights are checked when the model is loaded
        bins, tokens = shapes[_BINS][0], shapes[_EMBEDDING][0]
    except KeyError as error:
        raise ValueError(
            f"--model-path {path}: {weights} lacks {error}; robometer accepts the names of "
            "robometer/Robometer-4B"
        ) from None
    stated = options.get(("loss", "progress_discrete_bins"), str(bins))
    if bins < 2 or stated != str(bins):
        raise ValueError(
            f"--model-path {path}: {_BINS} has {bins} bins, config.yaml "
            f"loss.progress_discrete_bins {stated}; robometer accepts 2 or more, the same in both"
        )
    has_processor = (folder / "tokenizer_config.json").exists() and any(
        (folder / name).exists() for name in ("processor_config.json", "preprocessor_config.json")
    )
    base = options.get(("model", "base_model_id"), _BASE_MODEL)
    return RobometerLayout(folder, bins, tokens, str(folder) if has_processor else base)


def _local_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    require("transformers", "the judge robometer", "huggingface_hub")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - needed for hub names only

    try:
        return Path(snapshot_download(path, allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:
        raise ValueError(f"--model-path {path}: {error}") from error


def _read_shapes(path: str, folder: Path) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return the file that names all weights, and the shape of each weight by its name."""
    name = listed = _INDEX if (folder / _INDEX).exists() else "model.safetensors"
    files = {listed}
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        if listed == _INDEX:
            files = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
        for name in sorted(files):
            shapes |= _header(folder / Path(name).name)
    except FileNotFoundError:
        raise ValueError(
            f"--model-path {path}: there is no {name}; robometer reads safetensors, no other "
            "files of weights"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--model-path {path}: {name} is damaged: {error!r}") from error
    return listed, shapes


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of a safetensors file: eight bytes of length, then JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        tensors = json.loads(stream.read(length))
    return {
        name: tuple(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__"
    }


def _read_yaml_options(file: Path) -> dict[tuple[str, str], str]:
    """Return the plain values of config.yaml, by section and key.

    The authors' tool writes one `key: value` per line, indented below its section.
    """
    if not file.exists():
        return {}
    options: dict[tuple[str, str], str] = {}
    section = ""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if top := re.match(r"(\w+):\s*(#|$)", line):
            section = top[1]
        elif option := re.match(r"  (\w+):\s*['\"]?([^\s'\"#]+)['\"]?\s*(#|$)", line):
            options[section, option[1]] = option[2]
    return options
