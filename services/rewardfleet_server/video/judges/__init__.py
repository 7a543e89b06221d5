"""The judges of the video service, and what each of them must be able to do.

A judge is found by a lazy `module:attribute` string, so that importing the server imports
neither torch nor vLLM. The attribute is called with the service's `VideoSettings` and returns
a `Judge`, or one that is `DeferredJudge`: nothing is loaded before all that are asked for are found
good. Any other name is that of the user's own, see `custom.py`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from rewardfleet.wire.video import Curve
from rewardfleet_server.video.frames import Clip

#: The judges that come with the service, by the name that requests use: what makes each.
JUDGES: dict[str, str] = {
    "reference": "rewardfleet_server.video.judges.reference:build",
    "openai": "rewardfleet_server.video.judges.openai:build",
    "qwen2_5_vl_vllm": "rewardfleet_server.video.judges.vlm.factory:qwen_on_vllm",
    "PRIMO-R1": "rewardfleet_server.video.judges.vlm.factory:primo_on_vllm",
    "transformers": "rewardfleet_server.video.judges.vlm.factory:qwen_on_transformers",
}

#: Other names of judges, which requests may use as well.
ALIASES: dict[str, str] = {"primo_r1_vllm": "PRIMO-R1"}


@dataclass(frozen=True)
class Judgment:
    """What a judge found.

    Attributes:
        score: In [0, 1], or None: the judge abstains, and says in `text` why.
        text: The judge's own words.
        components: What the score is made of, by name.
        curve: Scores after parts of the clip, where the request asked for them.
        provenance: What the request's own options put in place of the judge's.
    """

    score: float | None
    text: str
    components: Mapping[str, float] = field(default_factory=dict)
    curve: Curve | None = None
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)


class _Backend(Protocol):
    """What all judges have.

    Attributes:
        provenance: Model, prompt, readout and versions: all that the judgments depend on beside
            the request. Its digest is part of the cache key.
        deterministic: Whether the same request always gets the same judgment.
        failure: Why it can judge no more and the process should end, or None.
    """

    @property
    def provenance(self) -> Mapping[str, JsonValue]: ...

    @property
    def deterministic(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        """Raise `InvalidRequest` where the request's `backend_kwargs` are not accepted."""

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Around its work: warm up before the first judgment, end engines after the last."""


class ClipJudge(_Backend, Protocol):
    """A judge that sees frames. It never sees HTTP."""

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        """Judge a clip. Whatever it raises is answered as `backend_failed`."""


@runtime_checkable
class FileJudge(_Backend, Protocol):
    """A judge that reads video files itself."""

    async def judge_file(
        self,
        task_text: str,
        path: str,
        nframes: int,
        max_pixels: int,
        backend_kwargs: Mapping[str, JsonValue],
    ) -> Judgment:
        """Judge a video file. Whatever it raises is answered as `backend_failed`."""


Judge = ClipJudge | FileJudge


@dataclass(frozen=True)
class DeferredJudge:
    """A judge whose settings were found good, and whose model is not loaded yet."""

    load: Callable[[], Judge]
