"""What a service writes to its score log."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel

from rewardfleet.score_log import Scored, ScoreLog
from rewardfleet.score_log.strip import Frame, chosen, strip_of
from rewardfleet.score_log.writer import DROPPED
from rewardfleet.services import SERVICES
from rewardfleet.wire.score import Score
from rewardfleet_server.settings import ServerSettings

from .telemetry import RequestContext


@dataclass
class Seen:
    """What the backend saw of an item, besides its request."""

    sha256: str | None = None  #: of the content, if it is known
    frames: Sequence[Frame] = ()  #: in order; none before they are decoded


@dataclass(frozen=True)
class BatchHeader:
    """What of a batch is no part of its items."""

    run: str | None = None
    step: int | None = None
    options: BaseModel | None = None


@dataclass(eq=False)
class ServiceLog(Collector):
    """The score log of a service, and its metrics: how many records are in it, and are not."""

    _service: str
    _log: ScoreLog
    _sample: float  #: the share of requests of which it keeps scores that take microseconds
    _label_fraction: float = 0.0  #: the share of computed scores that it marks for people to label

    def close(self) -> None:
        self._log.close()

    def add(
        self,
        request: BaseModel,
        score: Score,
        context: RequestContext,
        *,
        seen: Seen | None,
        provenance: Callable[[], Mapping[str, Any]],
        share: float = 1.0,
    ) -> None:
        """Add an item and its score, given what the backend saw, if anything.

        `share` is the item's share of the body of its request.
        """
        is_fast = score.cached or SERVICES[self._service].is_fast
        if is_fast and not self._is_drawn(context):
            return
        # Whatever a request or a score has. A cached score repeats a computed one.
        is_new = score.score is not None and not score.cached
        is_to_label = is_new and random.random() < self._label_fraction  # noqa: S311 - no secret
        seen = seen or Seen()
        # No other frames are kept in memory: its limit is reached at four times as many clips.
        frames = () if score.cached else chosen(seen.frames)
        scored = partial(
            Scored,
            self._service,
            time.time(),
            request,
            score,
            context.request_id,
            sample_rate=self._sample if is_fast else 1.0,
            sha256=seen.sha256,
            strip=partial(strip_of, frames),
            label_fraction=self._label_fraction if is_to_label else None,
        )
        size = sum(frame.nbytes for frame in frames) + int(share * context.body_bytes)
        self._log.add(lambda: [scored(provenance=provenance())], size=size)

    def add_batch(
        self,
        items: Callable[[], Iterable[tuple[BaseModel, Mapping[str, Any]]]],
        context: RequestContext,
        *,
        count: int,
        provenance: Mapping[str, Any],
        header: BatchHeader | None = None,
    ) -> None:
        """Add the items of a batch that was scored in one computation, all or none of them.

        `items` returns so many, `count`, each with the fields of its score.
        """
        if not self._is_drawn(context):
            return
        scored = partial(
            Scored,
            self._service,
            time.time(),
            call=context.request_id,
            provenance=provenance,
            sample_rate=self._sample,
            **vars(header or BatchHeader()),
        )
        self._log.add(
            lambda: itertools.starmap(scored, items()), items=count, size=context.body_bytes
        )

    def _is_drawn(self, context: RequestContext) -> bool:
        """Return whether the fast items of a request are kept: together, as groups are."""
        if self._sample >= 1:
            return True
        if context.draw is None:
            context.draw = random.random()  # noqa: S311 - no secret
        return context.draw < self._sample

    def collect(self) -> Iterable[CounterMetricFamily]:
        written = CounterMetricFamily(
            "rewardfleet_score_log_records", "Records in the score log.", labels=["service"]
        )
        written.add_metric([self._service], self._log.written)
        yield written
        dropped = CounterMetricFamily(
            "rewardfleet_score_log_dropped",
            f"Records that are not in the score log, by reason: {', '.join(DROPPED)}.",
            labels=["service", "reason"],
        )
        for reason, count in self._log.dropped.items():
            dropped.add_metric([self._service, reason], count)
        yield dropped


def open_score_log(
    service: str, settings: ServerSettings, label_fraction: float
) -> ServiceLog | None:
    """Open the score log of a service, if it keeps one; ValueError if its folder cannot be used."""
    if settings.score_log is None:
        return None
    try:
        log = ScoreLog(
            settings.score_log, max_mb=settings.score_log_mb, max_days=settings.score_log_days
        )
    except ValueError as error:
        raise ValueError(f"--score-log {error}") from None
    return ServiceLog(service, log, settings.score_log_sample, label_fraction)
