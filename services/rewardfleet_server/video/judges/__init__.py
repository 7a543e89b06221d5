"""The judges of the video service, and the protocols that they implement.

A judge is found by its name: its module, which has it in lower case, declares its settings and a
builder as `JUDGE`, see `settings.py`. The builder returns a `Judge`, or a `DeferredJudge` whose
model is loaded once all requested judges have passed their checks. Importing a module imports
neither torch nor vLLM. Any other name is that of a judge of the user's own, see `loading.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import JsonValue

from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.video import Curve, NearestReference

if TYPE_CHECKING:  # the settings are read where frames cannot be decoded, too
    from rewardfleet_server.video.clip.frames import Clip

BackendKwargs = Mapping[str, JsonValue]  #: the options of a request


@dataclass(frozen=True)
class Judgment:
    score: float | None  #: in [0, 1], or None if the judge abstains; `text` then has the reason
    text: str  #: the judge's text output
    details: Mapping[str, float] = field(default_factory=dict)  #: other figures, by name
    #: Values after prefixes of the clip, if the request has `backend_kwargs.curve` or the judge
    #: always reports them.
    curve: Curve | None = None
    references: Sequence[NearestReference] = ()  #: what the clip was compared with
    #: Why it abstains. None: its answer has no score that can be read.
    cause: VideoCause | None = None
    #: What the request's `backend_kwargs` replaced in the judge's own provenance.
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)


class _Backend(Protocol):
    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        """Everything that judgments depend on besides the request, as part of the cache key."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests get equal judgments, so that they may be cached."""

    @property
    def failure(self) -> str | None:
        """Why the judge can no longer work, after which the process ends; or None."""

    @property
    def outage(self) -> str | None:
        """Why it can judge nothing now, or None."""

    def check_options(self, backend_kwargs: BackendKwargs) -> None:
        """Raise InvalidRequest if the options of a request are not accepted."""

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Return a context: entering it warms the judge up, leaving it releases its resources."""


class ClipJudge(_Backend, Protocol):
    """A judge that gets decoded frames."""

    async def judge(self, task_text: str, clip: "Clip", backend_kwargs: BackendKwargs) -> Judgment:
        """Judge a clip with options that `check_options` accepted.

        Raises:
            RewardFleetError: The judge failed; it is reported to the caller as it is.
            Exception: Any other exception is reported as `backend_failed`.
        """


@runtime_checkable
class FileJudge(_Backend, Protocol):
    """A judge that reads video files itself."""

    async def judge_file(
        self,
        task_text: str,
        path: str,
        nframes: int,
        max_pixels: int,
        backend_kwargs: BackendKwargs,
    ) -> Judgment:
        """Judge a video file, which exists during the call only; see `ClipJudge.judge`."""


Judge = ClipJudge | FileJudge  #: what a builder returns once it is loaded


@dataclass(frozen=True)
class DeferredJudge:
    """A judge whose settings are checked and whose model is not loaded yet."""

    load: Callable[[], Judge]  #: loads the model; may raise ValueError
    #: Share of each GPU's memory that the model takes, by the setting.
    gpu_memory: Mapping[str, float] = field(default_factory=dict)
