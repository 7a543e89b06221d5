"""The routes of the episode service.

A batch flows in one direction: decode → validate → compute rewards → aggregate by group → encode.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge

from rewardfleet.episodes import Measured, Running, measure, settle
from rewardfleet.episodes.temperatures import Bin, by_temperature
from rewardfleet.wire.episode import (
    MAX_EPISODES,
    CollectAnswer,
    CollectRequest,
    EpisodeAnswer,
    EpisodeBatch,
    EpisodeOptions,
    EpisodeRequest,
    EpisodeScore,
    TemperaturesAnswer,
    TemperaturesRequest,
)
from rewardfleet.wire.score import Status
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.run_state import RunState
from rewardfleet_server.telemetry import RequestContext
from rewardfleet_server.threads import run_in_thread

from . import encode
from .decode import Batch, decode_batch
from .group_collector import GroupCollector
from .running_stats import RunningStatsStore
from .temperature_schedule import TemperatureScheduler

T = TypeVar("T")

#: Fields and values of a batch: room for actions of 100 x 7 in every episode.
_MAX_BATCH_FIELDS, _MAX_BATCH_VALUES = 40 * MAX_EPISODES, 1_000 * MAX_EPISODES
#: Fields of any other body.
_MAX_FIELDS = 1_000


class TemperatureMetrics:
    """The outcome of the last batches by temperature; one label with at most 21 values."""

    def __init__(self) -> None:
        label = ("temperature",)
        # Not in prometheus_client's own registry: each service has one.
        self.episodes = Counter("rewardfleet_episodes", "Episodes scored.", label, registry=None)
        self._gauges = {
            name: Gauge(f"rewardfleet_episode_{name}", documentation, label, registry=None)
            for name, documentation in (
                ("success_rate", "Success rate in the last batch with that temperature."),
                ("steps", "Mean steps, likewise."),
                ("reward_mean", "Mean reward, likewise."),
                ("reward_variance", "Variance of the reward, likewise."),
            )
        }

    @property
    def collectors(self) -> tuple[Any, ...]:
        """The metrics, to be registered."""
        return (self.episodes, *self._gauges.values())

    def observe(self, bins: Sequence[Bin]) -> None:
        """Count the episodes of each temperature, and set its gauges."""
        for each in bins:
            self.episodes.labels(each.temperature).inc(each.episodes)
            for name, gauge in self._gauges.items():
                gauge.labels(each.temperature).set(getattr(each, name))


@dataclass(frozen=True)
class _Encoded:
    """An encoded response, and what is counted of it. See `engine.ScoredBatch`."""

    content: bytes
    statuses: Mapping[Status, int]
    scores: NDArray[np.float64]


class EpisodeApi:
    """Answers the routes besides `POST /score`.

    Args:
        engine: Holds permits, and counts results.
        store: The state of training runs.
        metrics: Told of each temperature's outcome.
        thread: Where batches are computed. One, as computing holds the interpreter.
    """

    def __init__(
        self,
        engine: Engine[EpisodeRequest, EpisodeScore],
        store: RunState,
        metrics: TemperatureMetrics,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._engine = engine
        self._running_stats = RunningStatsStore(store)
        self._groups = GroupCollector(store, metrics.observe)
        self._temperatures = TemperatureScheduler(store)
        self._metrics = metrics
        self._thread = thread

    def routes(self) -> Sequence[Route[Any]]:
        """Return the routes."""
        return (
            Route(
                "/score/batch",
                "Score a rollout batch with its groups",
                EpisodeBatch,
                EpisodeAnswer,
                self.score_batch,
                decode_batch,
                max_fields=_MAX_BATCH_FIELDS,
                max_values=_MAX_BATCH_VALUES,
            ),
            Route(
                "/groups/members",
                "Add one episode to its group; repeat until the group is released",
                CollectRequest,
                CollectAnswer,
                self.add_member,
                max_fields=_MAX_FIELDS,
            ),
            Route(
                "/temperatures",
                "Return the temperature of each sample of a prompt",
                TemperaturesRequest,
                TemperaturesAnswer,
                self.temperatures,
                max_fields=_MAX_FIELDS,
            ),
        )

    async def score_batch(self, batch: Batch, context: RequestContext) -> bytes:
        """Score a batch as a whole."""
        scored = await self._engine.score_together(
            encode.BACKEND, context, lambda: self._score(batch, context)
        )
        return scored.content

    async def _score(self, batch: Batch, context: RequestContext) -> _Encoded:
        options = batch.head.options
        if options.normalise != "running":
            return await self._in_thread(
                batch, lambda: self._encode(_compute(batch), options, context)
            )
        measured = await self._in_thread(batch, lambda: _compute(batch))
        running = await self._running_stats.update(batch.head, measured)
        return await self._in_thread(
            batch, lambda: self._encode(measured, options, context, running)
        )

    def _encode(
        self,
        measured: Measured,
        options: EpisodeOptions,
        context: RequestContext,
        running: Running | None = None,
    ) -> _Encoded:
        settled = settle(measured, options, running)
        bins = by_temperature(settled)
        self._metrics.observe(bins)
        content = encode.encode_batch(settled, bins, running, context)
        scores = settled.scores[np.isfinite(settled.scores)]
        return _Encoded(content, encode.statuses(settled), scores)

    async def _in_thread(self, batch: Batch, work: Callable[[], T]) -> T:
        return work() if batch.is_small else await run_in_thread(self._thread, work)

    async def add_member(self, request: CollectRequest, context: RequestContext) -> bytes:
        """Add one episode to its group."""

        async def collect() -> _Encoded:
            answer = await self._groups.collect(request, context.request_id)
            statuses, scores = {}, []
            if answer["released"]:
                statuses = {Status(answer["result"]["status"]): 1}
                scores = [score for score in [answer["result"]["score"]] if score is not None]
            return _Encoded(msgspec.json.encode(answer), statuses, np.array(scores, float))

        scored = await self._engine.score_together(encode.BACKEND, context, collect)
        return scored.content

    async def temperatures(
        self, request: TemperaturesRequest, context: RequestContext
    ) -> TemperaturesAnswer:
        """Return the temperatures of a prompt's samples."""
        async with self._engine.permit(context):
            return await self._temperatures.answer(request)


def _compute(batch: Batch) -> Measured:
    return measure(batch.items, batch.head.options, batch.invalid)
