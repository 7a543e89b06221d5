"""The routes and the scorer of the episode service.

A batch flows in one direction: decode → validate → compute rewards → aggregate by group → encode.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import prometheus_client
from prometheus_client import Gauge
from pydantic import JsonValue

from rewardfleet import episodes
from rewardfleet.episodes import Rewards, RunningMeanStd, TemperatureBin
from rewardfleet.wire import episode as wire
from rewardfleet.wire.score import Status, Timing, reward_of
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.observe.score_log import BatchHeader
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.run_state import RunState
from rewardfleet_server.scorer import ScoredBatch, ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile
from rewardfleet_server.system.threads import run_in_thread

from . import encode
from .decode import DecodedBatch, decode_batch, logged_items
from .runs import add_member, count_rewards, sample_temperatures

T = TypeVar("T")

#: Limits on the JSON fields and values of a batch: enough for actions of 100 x 7 in each episode.
_MAX_BATCH_FIELDS, _MAX_BATCH_VALUES = 40 * wire.MAX_EPISODES, 1_000 * wire.MAX_EPISODES
#: Limit on the JSON fields of any other body.
_MAX_FIELDS = 1_000


class TemperatureMetrics:
    """Metrics by sampling temperature, whose label has at most 21 values."""

    def __init__(self) -> None:
        label = ("temperature",)
        # registry=None: each service has its own registry, not the global one.
        self.episodes = prometheus_client.Counter(
            "rewardfleet_episodes", "Episodes scored.", label, registry=None
        )
        last = "in the last batch with this temperature."
        self._gauges = {
            name: Gauge(f"rewardfleet_episode_{name}", f"{figure} {last}", label, registry=None)
            for name, figure in (
                ("success_rate", "Success rate"),
                ("steps", "Mean steps"),
                ("reward_mean", "Mean reward"),
                ("reward_variance", "Reward variance"),
            )
        }
        self.collectors = (self.episodes, *self._gauges.values())  #: the metrics to register

    def observe(self, bins: Sequence[TemperatureBin]) -> None:
        """Add the episodes of each temperature to its counter, and set its gauges."""
        for each in bins:
            self.episodes.labels(each.temperature).inc(each.episodes)
            for name, gauge in self._gauges.items():
                gauge.labels(each.temperature).set(getattr(each, name))


class EpisodeScorer:
    """Scores single episodes, without groups. Nothing is cached: computing is cheaper."""

    async def plan(
        self,
        request: wire.EpisodeRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - this service accepts none
    ) -> ScoringPlan[wire.EpisodeScore]:
        async def compute(_: float | None) -> wire.EpisodeScore:
            timing = Timing()
            with stage(timing, "backend"):
                result = episodes.score_episodes([request])
            if error := result.batch.reasons.get(0):
                raise error
            (encoded,) = encode.results(result, None)
            # Filters apply to groups: a single episode with a score is always kept.
            more = {"keep": encoded.score is not None, "drop_reason": None, "timing_ms": timing}
            return wire.EpisodeScore.model_validate(msgspec.to_builtins(encoded) | more)

        return ScoringPlan(encode.BACKEND, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        return dict(encode.PROVENANCE)


@dataclass(frozen=True)
class EpisodeApi:
    """The routes besides `POST /score`."""

    _engine: Engine[wire.EpisodeRequest, wire.EpisodeScore]
    _store: RunState
    _metrics: TemperatureMetrics
    #: Computes batches; a single thread: the computation holds the GIL.
    _thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "episodes"))

    def routes(self) -> Sequence[Route[Any]]:
        """Return the routes."""
        return (
            Route(
                "/score/batch",
                "Score a rollout batch with its groups",
                wire.EpisodeBatchRequest,
                wire.EpisodeBatchResponse,
                self._score_batch,
                decode_batch,
                max_fields=_MAX_BATCH_FIELDS,
                max_values=_MAX_BATCH_VALUES,
                items_fail_alone=True,
            ),
            Route(
                "/groups/members",
                "Add one episode to its group; repeat until the group is released",
                wire.GroupMemberRequest,
                wire.GroupMemberResponse,
                self._add_member,
                max_fields=_MAX_FIELDS,
            ),
            Route(
                "/temperatures",
                "Return the temperature of each sample of a prompt",
                wire.TemperaturesRequest,
                wire.TemperaturesResponse,
                self._temperatures,
                scores=False,
                max_fields=_MAX_FIELDS,
            ),
        )

    async def _score_batch(self, batch: DecodedBatch, context: RequestContext) -> bytes:
        scored = await self._engine.score_together(
            encode.BACKEND,
            context,
            lambda timing: self._score(batch, context, timing),
            items=len(batch.items),
            header=BatchHeader(batch.header.run, batch.header.step, batch.header.options),
        )
        return scored.content

    async def _score(
        self, batch: DecodedBatch, context: RequestContext, timing: Timing
    ) -> ScoredBatch:
        options = batch.header.options

        def encoded(rewards: Rewards, running: RunningMeanStd | None = None) -> ScoredBatch:
            with stage(timing, "backend"):
                result = episodes.aggregate(rewards, options, running)
            bins = episodes.by_temperature(rewards)
            self._metrics.observe(bins)
            timing.total = round(context.elapsed_ms, 3)
            content = encode.encode_batch(result, bins, running, context.request_id, timing)
            values = result.details.get("reward", result.scores)[np.isfinite(result.scores)]
            causes: Counter[str] = Counter(filter(None, result.causes))
            logged = partial(logged_items, batch, content)
            return ScoredBatch(content, encode.statuses(result), values, causes, logged)

        def compute() -> Rewards:
            with stage(timing, "backend"):
                valid = episodes.validate_batch(batch.items, options, batch.invalid)
                return episodes.compute_rewards(valid, options)

        if options.normalize != "running":
            return await self._in_thread(batch, lambda: encoded(compute()))
        rewards = await self._in_thread(batch, compute)
        running = await count_rewards(self._store, batch.header, rewards)
        return await self._in_thread(batch, lambda: encoded(rewards, running))

    async def _in_thread(self, batch: DecodedBatch, work: Callable[[], T]) -> T:
        return work() if batch.is_small else await run_in_thread(self._thread, work)

    async def _add_member(self, request: wire.GroupMemberRequest, context: RequestContext) -> bytes:
        async def add(timing: Timing) -> ScoredBatch:
            with stage(timing, "backend"):
                episodes.check_episode(request.item, request.options)
                response, released = await add_member(self._store, request, context.request_id)
            logged: list[Any] = []  # kept together: the scores depend on each other
            if released is not None:
                rewards, scores = released
                self._metrics.observe(episodes.by_temperature(rewards))
                logged = [*zip(rewards.batch.items, scores, strict=True)]
            results = [response["result"]] if response["released"] else []
            scored = [each for each in results if each["score"] is not None]
            return ScoredBatch(
                msgspec.json.encode(response),
                Counter(Status(each["status"]) for each in results),
                np.array([reward_of("episode", each) for each in scored], float),
                Counter(each["cause"] for each in results if each.get("cause") is not None),
                (lambda: logged) if logged else None,
                len(logged),
            )

        header = BatchHeader(request.run, request.step, request.options)
        scored = await self._engine.score_together(encode.BACKEND, context, add, header=header)
        return scored.content

    async def _temperatures(
        self, request: wire.TemperaturesRequest, context: RequestContext
    ) -> wire.TemperaturesResponse:
        async with self._engine.permit(context):
            return await sample_temperatures(self._store, request)
