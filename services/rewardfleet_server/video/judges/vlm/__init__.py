"""Judges that run a vision-language model of the Qwen-VL family in this process.

One request passes through: a *view* makes a conversation of the clip (`views.py`), the frames are
resized to what the model takes (`geometry.py`), an *engine* continues the conversation
(`on_vllm.py`, `on_transformers.py`), and a *readout* makes a score of what came (`readouts.py`).
`judge.py` holds the thread, `build.py` puts the judges of the table together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from rewardfleet_server.video.frames import Frame

#: T frames of one size, RGB, `[T, H, W, 3]`, uint8.
Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """One frame, shown as a still.

    Attributes:
        id: Names the content, for caches of what the model made of it.
    """

    frame: Frame
    id: str


@dataclass(frozen=True)
class Video:
    """Frames, shown as a video.

    Attributes:
        frames: An even number of them, as the models take them two at a time; stacked when they
            have the model's size.
        indices: Which frames of the source these are, `[T]`.
        total: How many frames the source has.
        fps: Frames a second of the source.
        max_pixels: The most pixels of a frame that the model shall see.
        id: Names the content, for caches of what the model made of it.
    """

    frames: Frames | tuple[Frame, ...]
    indices: tuple[int, ...]
    total: int
    fps: float
    max_pixels: int
    id: str


@dataclass(frozen=True)
class Conversation:
    """What a model is shown and told, in order."""

    parts: tuple[Picture | Video | str, ...]
    system: str | None = None


@dataclass(frozen=True)
class Ask:
    """How a model shall continue. Equal ones may share a batch.

    Attributes:
        max_tokens: Tokens of the answer.
        n: Answers wanted; they differ where the temperature is above 0.
        labels: Tokens whose log-probabilities at the answer's first place are wanted.
        numbers_only: Whether the text is limited to a whole number from 0 to 100.
    """

    max_tokens: int
    temperature: float
    top_p: float
    n: int = 1
    labels: tuple[int, ...] = ()
    numbers_only: bool = False


@dataclass(frozen=True)
class Answer:
    """How a model continued.

    Attributes:
        truncated: Whether it was cut at `Ask.max_tokens`.
        logprobs: Of the labels that were asked for, by token.
    """

    text: str
    truncated: bool
    logprobs: Mapping[int, float] = field(default_factory=dict)


class Engine(Protocol):
    """What continues conversations, those of many callers in one batch.

    Attributes:
        provenance: What its answers depend on: library, version, precision.
        failure: Why it can work no more, or None.
    """

    @property
    def provenance(self) -> Mapping[str, JsonValue]: ...

    @property
    def failure(self) -> str | None: ...

    async def answer(self, conversation: Conversation, prompt: str, ask: Ask) -> list[Answer]:
        """Continue a conversation whose frames have the model's size; return `ask.n` answers.

        `prompt` is the conversation in the model's chat template, see `Checkpoint.prompt`.

        A caller who is cancelled takes his request out of the batch.

        Raises:
            InvalidRequest: The model cannot take the conversation.
            Unavailable: The engine is gone.
        """

    async def aclose(self) -> None:
        """Give the memory back, and end what was started."""
