"""Judges that run a vision-language model in this process.

How a request is judged: a prompt layout makes a conversation of the clip (`prompt_layouts.py`), a
geometry resizes the frames to what the model takes, an engine generates completions
(`engine_vllm.py`, `engine_transformers.py`), and a readout turns them into a score
(`readouts.py`). `judge.py` runs these steps. What is specific to a family of models is in
`families/`, what their builders share in `factory.py` and `settings.py`.

To add a family, write `families/<name>.py` with its settings, a builder and, if it is not of the
Qwen-VL family, a geometry; `JUDGE` names them, by which the judge is found. Its prompt is a file in
`video/prompts`.
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
class ImagePart:
    """One frame, shown as a still image.

    Attributes:
        frame: RGB, `[H, W, 3]`, uint8.
        id: Identifies the content in an engine's caches.
    """

    frame: Frame
    id: str


@dataclass(frozen=True)
class VideoPart:
    """Frames, shown as a video.

    Attributes:
        frames: T frames of one size. They are stacked once they have the model's size.
        indices: The source's index of each frame, `[T]`.
        total: Number of frames of the source.
        fps: Frames per second of the source, above 0.
        max_pixels: The most pixels per frame that the model may see.
        id: Identifies the content in an engine's caches.
    """

    frames: Frames | tuple[Frame, ...]
    indices: tuple[int, ...]
    total: int
    fps: float
    max_pixels: int
    id: str


@dataclass(frozen=True)
class Conversation:
    """One user turn, after an optional system prompt.

    Attributes:
        parts: Images, videos and texts, in order.
        system: The system prompt, or None.
        is_open: Whether the model continues the user's last text, instead of answering in a turn.
    """

    parts: tuple[ImagePart | VideoPart | str, ...]
    system: str | None = None
    is_open: bool = False


@dataclass(frozen=True)
class GenerationParams:
    """Parameters of generation. Conversations with equal parameters may share a batch.

    Attributes:
        max_tokens: The most tokens of a completion.
        temperature: 0 or more; 0 for greedy decoding.
        top_p: Probability mass of nucleus sampling, in (0, 1].
        top_k: Sample among that many tokens; 0 for all.
        n: Number of completions, 1 or more. They differ only at a temperature above 0.
        labels: Token ids whose log-probabilities at the first position are returned.
        numbers_only: Whether the text is restricted to a whole number from 0 to 100.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int = 0
    n: int = 1
    labels: tuple[int, ...] = ()
    numbers_only: bool = False


@dataclass(frozen=True)
class Completion:
    """A completion that a model generated.

    Attributes:
        text: Without special tokens.
        truncated: Whether it was cut at `GenerationParams.max_tokens`.
        logprobs: Natural log-probability of each of `GenerationParams.labels`, by token id.
    """

    text: str
    truncated: bool
    logprobs: Mapping[int, float] = field(default_factory=dict)


class InferenceEngine(Protocol):
    """Generates completions; concurrent conversations share batches.

    Attributes:
        provenance: What the completions depend on: library, version, precision.
        failure: Why the engine can no longer work, or None.
    """

    @property
    def provenance(self) -> Mapping[str, JsonValue]: ...

    @property
    def failure(self) -> str | None: ...

    async def generate(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> list[Completion]:
        """Return `params.n` completions. Cancelling the call removes it from the batch.

        Args:
            conversation: Its frames have the size that the model takes.
            prompt: The conversation in the model's chat template, see `Checkpoint.prompt`.
            params: How to generate.

        Raises:
            InvalidRequest: The model cannot take the conversation.
            BackendFailed: The model failed on this conversation.
            Unavailable: The engine died.
        """

    async def aclose(self) -> None:
        """Free the memory, and end the processes that the engine started."""
