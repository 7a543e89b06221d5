"""A checkpoint: configuration, tokenizer and processor, checked before weights are loaded."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.optional_imports import require

from . import Conversation, GenerationParams, ImagePart, VideoPart
from .geometry import QwenGeometry

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CONFIG = TypeAdapter(dict[str, Any])
_FINGERPRINTED_FILES = (".safetensors", ".bin", ".json", ".jinja", ".txt")


class Checkpoint:
    """A checkpoint of a model, without its weights.

    Args:
        path: A folder with the checkpoint, or its name on a hub.
        config: Its `config.json`, see `read_config`.
        geometry: The size of the frames that it takes.
        max_model_len: Tokens of prompt, frames and answer together.

    Raises:
        ValueError: `max_model_len` is more than the model's maximum.
    """

    def __init__(
        self, path: str, config: Mapping[str, Any], geometry: QwenGeometry, max_model_len: int
    ) -> None:
        self.path = path
        self.name = _name_of(path)  #: its name for provenance, without the folder that it is in
        self.geometry = geometry
        #: A digest of the checkpoint's content, for cache keys.
        self.fingerprint = _fingerprint(path, config)
        text = config.get("text_config") or config
        maximum: int = text.get("max_position_embeddings", 0)
        if max_model_len > maximum:
            raise ValueError(
                f"max_model_len {max_model_len}: the model of --model-path {path} takes at most "
                f"{maximum} tokens"
            )
        self.context = max_model_len  #: tokens of prompt, frames and answer together

    @cached_property
    def processor(self) -> Any:
        """The model's own processor: tokenizer, chat template, patches; see `load_processor`."""
        return self.load_processor(self.path)

    def load_processor(self, source: str) -> Any:
        """Load the processor of this checkpoint from a folder or a hub name.

        Raises:
            ValueError: transformers cannot load it.
        """
        try:
            processor = _transformers(self.path).AutoProcessor.from_pretrained(source)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"--model-path {self.path}: {error}") from error
        # In a padded batch, all completions then start at the same position.
        processor.tokenizer.padding_side = "left"
        return processor

    def tokens(self, labels: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Return the ids of the spellings of labels that are one token.

        Raises:
            ValueError: A label has none.
        """
        found: dict[str, int] = {}
        for label, texts in labels.items():
            ids = {t: self.processor.tokenizer.encode(t, add_special_tokens=False) for t in texts}
            single = {text: first for text, (first, *more) in ids.items() if not more}
            if not single:
                path = self.path
                raise ValueError(f"--model-path {path}: its tokenizer has no token for {label!r}")
            found |= single
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
        """Check that the context holds prompt, frames and answer.

        Raises:
            InvalidRequest: Together they are too long.
        """
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
    """Return a checkpoint's `config.json`, from its folder or from a hub.

    Raises:
        ValueError: There is no such checkpoint, or its configuration is damaged.
    """
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
        config = {**found.to_dict(), "commit": getattr(found, "_commit_hash", None)}
    except (OSError, ValueError) as error:
        raise ValueError(f"--model-path {path}: {error}") from error
    return config


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
