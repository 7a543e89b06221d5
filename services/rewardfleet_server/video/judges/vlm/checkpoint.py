"""A checkpoint: configuration, tokenizer and processor, checked before weights are loaded."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import TypeAdapter

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require

from . import Conversation, Frames, GenerationParams, ImagePart, VideoPart
from .settings import ModelSettings

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CONFIG = TypeAdapter(dict[str, Any])
_FINGERPRINTED_FILES = (".safetensors", ".bin", ".json", ".jinja", ".txt")

#: The fewest and the most tokens of a frame of a video, and of an image, in qwen-vl-utils 0.0.14.
VIDEO_TOKENS = (128, 768)
_IMAGE_TOKENS = (4, 16384)


@dataclass(frozen=True)
class QwenGeometry:
    """Frame sizes and token counts of a checkpoint of the Qwen-VL family.

    The sizes are those of `smart_resize` in qwen-vl-utils: both sides are multiples of the side of
    one token, and the area lies between a minimum and a maximum number of tokens. If the caller
    allows fewer pixels than the minimum, the caller's limit applies. Frames are resized once, with
    torch. Their pixels differ from those that qwen-vl-utils makes of files by at most 4 of 255
    levels, and by a fifth of a level on average.
    """

    #: What the chat template writes where an image or a video goes.
    placeholders: ClassVar[re.Pattern[str]] = re.compile(r"<\|(?:image|video)_pad\|>")

    patch: int  #: pixels per side of a patch
    merge: int  #: patches per side of a token
    temporal: int = 2  #: frames that one token covers
    #: The most pixels of a frame, whatever requests allow; None for no limit.
    max_pixels: int | None = None

    @property
    def side(self) -> int:
        """Pixels per side of a token."""
        return self.patch * self.merge

    def tokens(self, conversation: Conversation) -> int:
        """Return how many tokens frames take; raise InvalidRequest if they are too narrow."""
        tokens = 0
        for part in conversation.parts:
            if not isinstance(part, str):
                frames = 1 if isinstance(part, ImagePart) else len(part.frames) // self.temporal
                tokens += frames * math.prod(self._size_of(part)) // self.side**2
        return tokens

    def _size_of(self, part: ImagePart | VideoPart) -> tuple[int, int]:
        if isinstance(part, ImagePart):
            height, width = part.frame.shape[:2]
            return self.size(height, width, None, _IMAGE_TOKENS)
        height, width = part.frames[0].shape[:2]
        return self.size(height, width, part.max_pixels, VIDEO_TOKENS)

    def size(
        self, height: int, width: int, max_pixels: int | None, limits: tuple[int, int]
    ) -> tuple[int, int]:
        """Return the height and width in pixels to which frames are resized; see `tokens`."""
        least, most = (each * self.side**2 for each in limits)
        most = min(most, max_pixels or most, self.max_pixels or most)
        # Imported here: services without a model need not wait seconds for torch.
        from qwen_vl_utils.vision_process import smart_resize  # noqa: PLC0415

        try:
            size: tuple[int, int] = smart_resize(height, width, self.side, min(least, most), most)
        except ValueError:
            raise InvalidRequest(
                f"frames of {width}x{height}: no side may be more than 200 times the other"
            ) from None
        return size

    def prepare(self, conversation: Conversation) -> Conversation:
        """Resize the frames to what the model takes. Blocks, without holding the GIL."""
        return replace(conversation, parts=tuple(map(self._prepared, conversation.parts)))

    def _prepared(self, part: ImagePart | VideoPart | str) -> ImagePart | VideoPart | str:
        if isinstance(part, str):
            return part
        size = self._size_of(part)
        if isinstance(part, ImagePart):
            return replace(part, frame=_resized(part.frame[None], size)[0])
        return replace(part, frames=_resized(np.stack(list(part.frames)), size))


def _resized(frames: Frames, size: tuple[int, int]) -> Frames:
    """Resize as torchvision does, bicubic with antialiasing, but in uint8 throughout."""
    if frames.shape[1:3] == size:
        return frames
    import torch  # noqa: PLC0415
    from torch.nn.functional import interpolate  # noqa: PLC0415

    # The permuted view is in torch's memory format "channels last": its fast path.
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
    resized = interpolate(channels_first, size, mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized.permute(0, 2, 3, 1).numpy())


def _geometry(config: Mapping[str, Any], own: ModelSettings) -> QwenGeometry:
    vision = config.get("vision_config") or {}
    if "spatial_merge_size" not in vision:
        raise ValueError(
            f"--model-path {own.model_path}: {config.get('model_type', 'this')!r} is not a "
            "vision-language model of the Qwen-VL family (Qwen2.5-VL, Qwen3-VL and models "
            "derived from them)"
        )
    return QwenGeometry(
        patch=vision.get("patch_size", 14),
        merge=vision["spatial_merge_size"],
        temporal=vision.get("temporal_patch_size", 2),
        max_pixels=getattr(own, "frame_pixels", None),  # a setting of some judges
    )


class Checkpoint:
    """A checkpoint of a model, without its weights.

    Args:
        config: Its `config.json`, see `read_config`.
        own: The settings of its judge, whose `model_path` is set.

    Raises:
        ValueError: It is not a model of the family, or `max_model_len` is more than its maximum.
    """

    def __init__(self, config: Mapping[str, Any], own: ModelSettings) -> None:
        self.path = own.model_path or ""  #: a folder, or a name on a hub
        self.name = _name_of(self.path)  #: for provenance, without the folder that it is in
        self.geometry = _geometry(config, own)  #: the size of the frames that it takes
        #: A digest of the checkpoint's content, for cache keys.
        self.fingerprint = _fingerprint(self.path, config)
        text = config.get("text_config") or config
        maximum: int = text.get("max_position_embeddings", 0)
        self.context = own.max_model_len  #: tokens of prompt, frames and answer together
        if self.context > maximum:
            raise ValueError(
                f"max_model_len {self.context}: the model of --model-path {self.path} takes at "
                f"most {maximum} tokens"
            )

    @cached_property
    def processor(self) -> Any:
        """The model's own processor: tokenizer, chat template, patches; see `load_processor`."""
        return self.load_processor(self.path)

    def load_processor(self, source: str) -> Any:
        """Load the processor from a folder or a hub name, or raise ValueError."""
        try:
            processor = _transformers(self.path).AutoProcessor.from_pretrained(source)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"--model-path {self.path}: {error}") from error
        # In a padded batch, all completions then start at the same position.
        processor.tokenizer.padding_side = "left"
        return processor

    def tokens(self, labels: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Return the ids of spellings that are one token; raise ValueError if a label has none."""
        found: dict[str, int] = {}
        for label, texts in labels.items():
            ids = {t: self.processor.tokenizer.encode(t, add_special_tokens=False) for t in texts}
            found |= {text: first for text, (first, *more) in ids.items() if not more}
            if found.keys().isdisjoint(texts):
                path = self.path
                raise ValueError(f"--model-path {path}: its tokenizer has no token for {label!r}")
        return found

    def prompt(self, conversation: Conversation) -> str:
        """Return a conversation in the model's chat template.

        An open conversation ends with the user's last text, without the end of the turn.
        """
        content = [self._template_part(part) for part in conversation.parts]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if conversation.system is not None:
            system = [self._template_part(conversation.system)]
            messages.insert(0, {"role": "system", "content": system})
        prompt: str = self.processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not conversation.is_open
        )
        # The processor of Qwen3-VL puts marks around each pair of frames. Later versions of it, as
        # in transformers 5.19, leave the marks of the template around all of them as well.
        names = ("vision_start_token", "video_token", "vision_end_token")
        start, video, end = (getattr(self.processor, name, "") for name in names)
        prompt = prompt.replace(start + video + end, video)
        if conversation.is_open:
            # No text of a caller contains this token, see `_template_part`.
            return prompt[: prompt.rindex(self.processor.tokenizer.eos_token)]
        return prompt

    def _template_part(self, part: ImagePart | VideoPart | str) -> dict[str, str]:
        if isinstance(part, str):
            # A caller's text must not open a turn or add an image. Special tokens are replaced by
            # a space, so that the text around them does not join to another special token.
            return {"type": "text", "text": self._special_tokens.sub(" ", part)}
        return {"type": "image" if isinstance(part, ImagePart) else "video"}

    @cached_property
    def _special_tokens(self) -> re.Pattern[str]:
        added = self.processor.tokenizer.added_tokens_decoder.values()
        # The others, such as `<think>` of Qwen3-VL, are text, of which prompts have some.
        return re.compile("|".join(re.escape(str(token)) for token in added if token.special))

    def check_length(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> None:
        """Raise InvalidRequest if the context does not hold prompt, frames and answer."""
        frames = self.geometry.tokens(conversation)
        text = self.geometry.placeholders.sub("", prompt)
        question = len(self.processor.tokenizer.encode(text))
        if frames + question + params.max_tokens > self.context:
            raise InvalidRequest(
                f"the frames take {frames} tokens, the question {question}, the answer up to "
                f"{params.max_tokens}: more than the model's {self.context}; send fewer nframes "
                "or a smaller max_pixels"
            )


def read_config(path: str) -> dict[str, Any]:
    """Return the `config.json` of a folder or a hub name, or raise ValueError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        try:
            return _CONFIG.validate_json((folder / "config.json").read_bytes())
        except FileNotFoundError:
            raise ValueError(f"--model-path {path}: the folder has no config.json") from None
        except ValueError as error:
            raise ValueError(f"--model-path {path}: config.json is damaged: {error}") from None
    if folder.exists() or not _HUB_ID.fullmatch(path):
        raise ValueError(
            f"--model-path {path}: no such folder, and not a hub name like Qwen/Qwen3-VL-2B"
        )
    transformers = _transformers(path)
    try:
        found = transformers.AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model-path {path}: {error}") from error
    return {**found.to_dict(), "commit": getattr(found, "_commit_hash", None)}


def _name_of(path: str) -> str:
    """Return the name of a folder, or of a model on a hub, also if it is in the hub's cache."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    folder = folder.absolute()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _fingerprint(path: str, config: Mapping[str, Any]) -> str:
    """Digest a checkpoint's content: its configuration, and its files' names, sizes and times.

    The configuration of a checkpoint on a hub holds the commit.
    """
    lines = [json.dumps(config, sort_keys=True, default=str)]
    folder = Path(path).expanduser()
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.name.endswith(_FINGERPRINTED_FILES):
                status = file.stat()
                lines.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _transformers(path: str) -> Any:
    """Import transformers for a checkpoint; this takes seconds."""
    require("transformers", f"--model-path {path}", "transformers")
    import transformers  # noqa: PLC0415 - services without a model do not need it

    return transformers
