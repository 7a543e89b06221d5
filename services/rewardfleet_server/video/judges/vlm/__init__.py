"""Judges that run a vision-language model in this process.

How a request is judged: a prompt layout makes a conversation of the clip (`prompt_layouts.py`), a
geometry resizes the frames to what the model takes, an engine generates completions
(`engine_vllm.py`, `engine_transformers.py`), and a readout turns them into a score
(`readouts.py`). `judge.py` runs these steps. What is specific to a family of models is in
`families/`, what they share in `factory.py`, which builds judges, and `settings.py`.

To add a family, write `families/<name>.py` with its settings and a builder; `JUDGE` names them, by
which the judge is found. Its prompt is a file in `video/prompts`. All are based on Qwen-VL, whose
sizes of frames are in `checkpoint.py`.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from rewardfleet_server.video.clip.frames import Frame
from rewardfleet_server.video.judges.labels import Position

T_co = TypeVar("T_co", covariant=True)

#: T frames of one size, RGB, `[T, H, W, 3]`, uint8.
Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class ImagePart:
    """One frame, shown as a still image."""

    frame: Frame  #: RGB, `[H, W, 3]`, uint8
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  #: in an engine's caches


@dataclass(frozen=True)
class VideoPart:
    """Frames, shown as a video."""

    #: T frames of one size. They are stacked once they have the model's size.
    frames: Frames | tuple[Frame, ...]
    indices: tuple[int, ...]  #: the source's index of each frame, `[T]`
    total: int
    fps: float  #: frames per second of the source, above 0
    max_pixels: int  #: the most pixels per frame that the model may see
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  #: in an engine's caches

    @property
    def metadata(self) -> dict[str, Any]:
        """When the frames were taken, as engines ask for it. They would assume other times."""
        return {
            "fps": self.fps,
            "total_num_frames": self.total,
            "duration": self.total / self.fps,
            "frames_indices": list(self.indices),
            "video_backend": "opencv",
        }


@dataclass(frozen=True)
class Conversation:
    """One user turn, after an optional system prompt."""

    parts: tuple[ImagePart | VideoPart | str, ...]  #: images, videos and texts, in order
    system: str | None = None
    #: Whether the model continues the user's last text, instead of answering in a turn.
    is_open: bool = False


@dataclass(frozen=True)
class GenerationParams:
    """Parameters of generation. Conversations with equal parameters may share a batch."""

    max_tokens: int  #: the most tokens of a completion
    temperature: float  #: 0 or more; 0 for greedy decoding
    top_p: float  #: probability mass of nucleus sampling, in (0, 1]
    top_k: int = 0  #: sample among that many tokens; 0 for all
    n: int = 1  #: completions, 1 or more, which differ only at a temperature above 0
    #: Texts and ids of the tokens whose log-probabilities are returned.
    labels: Mapping[str, int] = field(default_factory=dict)
    numbers_only: bool = False  #: whether the text is restricted to a whole number from 0 to 100


@dataclass(frozen=True)
class Completion:
    """A completion that a model generated."""

    text: str  #: without special tokens
    truncated: bool  #: whether it was cut at `GenerationParams.max_tokens`
    #: Its tokens, also that of its end, with those of `GenerationParams.labels`, if there are any.
    positions: Sequence[Position] = ()


class InferenceEngine(Protocol[T_co]):
    """Runs a model, which gives a result of type `T_co`; concurrent conversations share batches."""

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        """What the results depend on: library, version, precision."""

    @property
    def failure(self) -> str | None:
        """Why the engine can no longer work, or None."""

    def tokens(self, conversation: Conversation, prompt: str) -> list[int]:
        """Return the token ids that the model gets, with those of its frames. Blocks."""

    async def generate(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> T_co:
        """Return the result, e.g. `params.n` completions. Cancelling removes it from the batch.

        Args:
            conversation: Its frames have the size that the model takes.
            prompt: See `Checkpoint.prompt`.

        Raises:
            InvalidRequest: The model cannot take the conversation.
            BackendFailed: The model failed on this conversation.
            Unavailable: The engine died.
        """

    async def aclose(self) -> None:
        """Free the memory, and end the processes that the engine started."""


#: Generates `GenerationParams.n` completions.
TextEngine = InferenceEngine[list[Completion]]
