"""A checkpoint of the Qwen-VL family: what it is, checked before anything large is loaded."""

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.extras import require

from . import Ask, Conversation, Picture, Video
from .geometry import Geometry

#: Tokens of a short question and of two small frames.
_SHORTEST_QUESTION = 64
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

#: How the chat templates of the family mark the place of a picture and of a video.
_PLACEHOLDERS = re.compile(r"<\|(?:image|video)_pad\|>")
_WEIGHTS = (".safetensors", ".bin", ".json", ".jinja", ".txt")


class Checkpoint:
    """Configuration, processor and geometry of a model.

    Args:
        path: A folder with the checkpoint, or its name at a hub.
        max_model_len: Tokens of question, frames and answer together; None for all that the
            model has.
        flag: How users call `max_model_len`.
        max_pixels: The most pixels of a video's frame, whatever requests allow.

    Raises:
        ValueError: There is none, it is no such model, or it has fewer tokens than asked for.
    """

    def __init__(
        self,
        path: str,
        max_model_len: int | None = None,
        *,
        flag: str = "",
        max_pixels: int | None = None,
    ) -> None:
        self.path = path
        config = _read_config(path)
        vision = config.get("vision_config") or {}
        if "spatial_merge_size" not in vision:
            raise ValueError(
                f"--model-path {path}: {config.get('model_type', 'this')!r} is no vision-language "
                "model of the Qwen-VL family (Qwen2.5-VL, Qwen3-VL and those made of them)"
            )
        self.fingerprint = _fingerprint(path, config)
        self.geometry = Geometry(
            patch=vision.get("patch_size", 14),
            merge=vision["spatial_merge_size"],
            temporal=vision.get("temporal_patch_size", 2),
            max_pixels=max_pixels,
        )
        text = config.get("text_config") or config
        self.context: int = text.get("max_position_embeddings", 0)
        if max_model_len is not None and max_model_len > self.context:
            raise ValueError(
                f"{flag} {max_model_len}: the model of --model-path {path} takes at most "
                f"{self.context} tokens"
            )
        self.context = max_model_len or self.context
        self.flag = f"{flag} {self.context}"

    @cached_property
    def processor(self) -> Any:
        """The model's own processor: tokens, chat template, patches."""
        try:
            processor = _transformers(self.path).AutoProcessor.from_pretrained(self.path)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"--model-path {self.path}: {error}") from error
        processor.tokenizer.padding_side = "left"  # so that every answer begins at the same place
        return processor

    def token(self, text: str) -> int | None:
        """Return the one token that `text` is, or None where it takes several."""
        tokens = self.processor.tokenizer.encode(text, add_special_tokens=False)
        return tokens[0] if len(tokens) == 1 else None

    def tokens(self, spellings: Sequence[str]) -> tuple[int, ...]:
        """Return the tokens of those spellings that are one token."""
        tokens = (self.token(spelling) for spelling in spellings)
        return tuple(dict.fromkeys(token for token in tokens if token is not None))

    def prompt(self, conversation: Conversation) -> str:
        """Put a conversation into the model's chat template."""
        content = [self._template_part(part) for part in conversation.parts]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if conversation.system is not None:
            said = [self._template_part(conversation.system)]
            messages.insert(0, {"role": "system", "content": said})
        prompt: str = self.processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return prompt

    def _template_part(self, part: Picture | Video | str) -> dict[str, str]:
        if isinstance(part, str):
            # What callers say cannot open a turn or add a picture. A space is left in the place,
            # so that the pieces around it do not become a token either.
            return {"type": "text", "text": self._special.sub(" ", part)}
        return {"type": "image" if isinstance(part, Picture) else "video"}

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Everything that the tokenizer takes for more than text."""
        added = self.processor.tokenizer.added_tokens_decoder.values()
        return re.compile("|".join(re.escape(str(token)) for token in added))

    def check_answer(self, max_tokens: int, flag: str) -> None:
        """Refuse answers so long that no clip could be shown.

        Raises:
            ValueError: Answer and the shortest question do not fit together.
        """
        if max_tokens + _SHORTEST_QUESTION > self.context:
            raise ValueError(
                f"{self.flag} leaves no room for {flag} {max_tokens}, a question and the frames"
            )

    def check_length(self, conversation: Conversation, prompt: str, ask: Ask) -> None:
        """Refuse what the model's context cannot hold.

        Raises:
            InvalidRequest: Question, frames and answer together are too long.
        """
        seen = self.geometry.tokens(conversation)
        text = self.processor.tokenizer.encode(_PLACEHOLDERS.sub("", prompt))
        said = len(text)
        if seen + said + ask.max_tokens > self.context:
            raise InvalidRequest(
                f"the frames make {seen} tokens, the question {said}, the answer up to "
                f"{ask.max_tokens}: more than the model's {self.context}; send fewer nframes or "
                "a smaller max_pixels"
            )


def _fingerprint(path: str, config: dict[str, Any]) -> str:
    """Name the checkpoint's content: the hub's commit, or the files' names, sizes and times."""
    said = [json.dumps(config, sort_keys=True, default=str)]
    folder = Path(path).expanduser()
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.name.endswith(_WEIGHTS):
                status = file.stat()
                said.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _read_config(path: str) -> dict[str, Any]:
    folder = Path(path).expanduser()
    if folder.is_dir():
        file = folder / "config.json"
        try:
            config: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            raise ValueError(f"--model-path {path}: the folder has no config.json") from None
        except ValueError as error:
            raise ValueError(f"--model-path {path}: config.json is damaged: {error}") from None
        return config
    if folder.exists() or not _HUB_ID.fullmatch(path):
        raise ValueError(f"--model-path {path}: no such folder, nor a name like Qwen/Qwen3-VL-2B")
    try:
        found = _transformers(path).AutoConfig.from_pretrained(path)
        config = {**found.to_dict(), "commit": getattr(found, "_commit_hash", None)}
    except (OSError, ValueError) as error:
        raise ValueError(f"--model-path {path}: {error}") from error
    return config


def _transformers(path: str) -> Any:
    """Import the library for a checkpoint, which takes seconds.

    Raises:
        ValueError: It is not installed.
    """
    require("transformers", f"--model-path {path}", "transformers")
    import transformers  # noqa: PLC0415 - a service without a model need not wait for it

    return transformers
