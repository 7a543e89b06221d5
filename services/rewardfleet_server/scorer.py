"""What a service does for its items, as the engine sees it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, JsonValue

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.score import Score, Status

from .observe.score_log import Seen
from .system.anonymous_file import AnonymousFile

RequestT_contra = TypeVar("RequestT_contra", bound=BaseModel, contravariant=True)
ScoreT = TypeVar("ScoreT", bound=Score)

#: The fields of a score by name, at least `score`, `status` and `cause`. Others have defaults.
ScoreFields = Mapping[str, Any]


@dataclass(frozen=True)
class CachePolicy(Generic[ScoreT]):
    """How one item's score is shared with other items."""

    #: Keys under which a usable score may be stored. The first one also names the computation,
    #: which concurrent identical items share.
    lookup_keys: tuple[str, ...]
    #: Returns the key to store a computed score under, and its time to live in seconds (None: no
    #: limit; 0: it is not stored). Default: the first lookup key, without limit.
    store_policy: Callable[[ScoreT], tuple[str, float | None]] | None = None
    #: Returns whether a stored score can be one of this item, besides being valid by its model.
    #: Scores that are not are computed again.
    is_valid: Callable[[ScoreT], bool] = lambda _: True
    #: Adapts a stored or shared score to this item.
    from_cached: Callable[[ScoreT], ScoreT] = lambda score: score
    #: Returns the fields in which a stored and a recomputed score must agree.
    audit_fields: Callable[[ScoreT], object] = lambda score: score.score
    not_stored: frozenset[str] = frozenset()  #: ScoreFields that `from_cached` takes from the item


@dataclass(frozen=True)
class ScoringPlan(Generic[ScoreT]):
    """How one item will be scored."""

    backend: str  #: the backend that will score it
    #: Scores it, given `RequestContext.call_timeout_s`. Fills in the stages of `timing_ms` except
    #: `total`, and the item's own part of `provenance`.
    compute: Callable[[float | None], Awaitable[ScoreT]]
    #: How its score is shared; None if it must be computed each time, because it is not
    #: deterministic or depends on a training run.
    cache: CachePolicy[ScoreT] | None = None
    is_large: bool = False  #: whether it takes much longer than most items; see `Admission.permit`
    #: The timeout of a call, in seconds, from which on a longer one changes nothing. A shorter one
    #: may be too short, which those who wait for longer do not share.
    full_timeout_s: float = 0.0
    #: Returns the failure if the deadline passes first. Default: `DeadlineExceeded`.
    overdue: Callable[[], RewardFleetError] | None = None
    seen: Seen | None = None  #: filled in by `compute`, for the score log


class BulkScorer(Protocol[RequestT_contra]):
    """Scores the independent items of a batch in one computation.

    It is for items that take less time than a task, a permit and a model for each.
    """

    backend: str  #: the backend of all scores

    async def prepare(
        self, requests: Sequence[RequestT_contra]
    ) -> Callable[[RequestT_contra], ScoreFields]:
        """Return the function that scores an item; it may raise RewardFleetError."""


class Scorer(Protocol[RequestT_contra, ScoreT]):
    """What a service does for one item."""

    async def plan(
        self, request: RequestT_contra, upload: AnonymousFile | None = None
    ) -> ScoringPlan[ScoreT]:
        """Check an item, and its file if it was uploaded, and plan how to score it.

        Does no heavy work. Raises RewardFleetError if the item cannot be scored.
        """

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return the provenance that all scores of a backend share."""


@dataclass(frozen=True)
class ScoredBatch:
    """The result of a batch that is scored as a whole."""

    content: bytes
    statuses: Mapping[Status, int]  #: how many items have each status, for metrics
    #: The rewards, before any normalization, of the items that are `ok`, `[N]`, for metrics.
    rewards: NDArray[np.float64]
    causes: Mapping[str, int]  #: how many items have each cause, for metrics
    #: Returns its items, each with the fields of its score, for the score log; None for nothing.
    logged: Callable[[], Iterable[tuple[BaseModel, ScoreFields]]] | None = None
    logged_count: int | None = None  #: how many these are, if not those of the call
