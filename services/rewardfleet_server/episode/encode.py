"""A settled batch's answer, as plain values: models would cost more than all else together."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.episodes import Running, Settled
from rewardfleet.episodes.temperatures import Bin
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.score import Status
from rewardfleet_server.telemetry import RequestContext

#: The name that answers give as their backend.
BACKEND = "episode"

PROVENANCE: dict[str, JsonValue] = {"service": f"rewardfleet {__version__}"}


class Result(msgspec.Struct, gc=False, omit_defaults=True):
    """`EpisodeScore` as it is written; a test holds the two together."""

    uid: str
    score: float | None
    status: Status
    keep: bool
    components: dict[str, float] = {}
    backend: str = ""
    dropped: str | None = None
    cluster: int | None = None
    pseudo_label: int | None = None
    step_rewards: list[float] | None = None
    token_positions: list[int] | None = None
    error: dict[str, Any] | None = None


def results(settled: Settled, request_id: str | None) -> list[Result]:
    """One result an item, in order."""
    items, ok = settled.measured.table.items, Status.OK
    written = [
        Result(item.uid, score, ok, keep, made_of, BACKEND)
        for item, score, made_of, keep in zip(
            items,
            settled.scores.tolist(),
            _components(settled),
            settled.keep.tolist(),
            strict=True,
        )
    ]
    for index, rule in settled.dropped.items():
        written[index].dropped = rule
    for index, steps in settled.measured.step_rewards.items():
        written[index].step_rewards = steps.tolist()
        written[index].token_positions = items[index].step_token_ends
    if settled.similarity is not None:
        numbers, voted = settled.similarity.cluster.tolist(), settled.similarity.voted.tolist()
        for result, number, vote in zip(written, numbers, voted, strict=True):
            if number >= 0:
                result.cluster, result.pseudo_label = number, int(vote)
    for index, reason in settled.reasons.items():
        written[index] = _without_score(items[index].uid, reason, request_id)
    return written


def _without_score(uid: str, reason: RewardFleetError | None, request_id: str | None) -> Result:
    """What stands for a score where there is none: a failure, or else an abstention."""
    status = Status.ABSTAINED if reason is None else Status.ERROR
    result = Result(uid, None, status, keep=False, backend=BACKEND)
    if reason is not None:
        problem = reason.problem(request_id)
        result.error = problem.model_dump(mode="json")
    return result


def statuses(settled: Settled) -> Mapping[Status, int]:
    abstained = sum(reason is None for reason in settled.reasons.values())
    failed = len(settled.reasons) - abstained
    counts = {
        Status.OK: len(settled.scores) - len(settled.reasons),
        Status.ABSTAINED: abstained,
        Status.ERROR: failed,
    }
    return {status: count for status, count in counts.items() if count}


def encode_batch(
    settled: Settled, bins: list[Bin], running: Running | None, context: RequestContext
) -> bytes:
    """Encode the response to a batch."""
    answer: dict[str, Any] = {
        "results": results(settled, context.request_id),
        "groups": groups(settled),
        "temperatures": temperatures(bins),
        "provenance": {BACKEND: PROVENANCE},
        "timing_ms": {"total": round(context.elapsed_ms, 3)},
    }
    if running is not None:
        moments = {"mean": running.mean, "variance": running.variance}
        answer["running"] = {"count": running.count, **moments}
    return msgspec.json.encode(answer)


def groups(settled: Settled) -> list[dict[str, Any]]:
    """One `GroupStats` a group."""
    columns: dict[str, list[Any]] = {
        "group": settled.names,
        "size": settled.grouping.sizes.tolist(),
        "mean": settled.mean.tolist(),
        "deviation": _or_none(settled.deviation.tolist()),
        "success_rate": _or_none(settled.success_rate.tolist()),
        "all_equal": settled.all_equal.tolist(),
    }
    if settled.similarity is not None:
        columns["clusters"] = settled.similarity.cluster_count.tolist()
        columns["majority_ratio"] = _or_none(settled.similarity.majority_ratio.tolist())
        columns["diversity"] = _or_none(settled.similarity.diversity.tolist())
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def temperatures(found: list[Bin]) -> list[dict[str, Any]]:
    """One `TemperatureStats` a bin."""
    return [{name: _known(value) for name, value in vars(each).items()} for each in found]


def _components(settled: Settled) -> list[dict[str, float]]:
    columns = settled.measured.components
    if not columns:
        return [{} for _ in settled.scores]
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return [{name: value} if value == value else {} for value in column.tolist()]  # noqa: PLR0124 - NaN
    names, rows = list(columns), zip(*(each.tolist() for each in columns.values()), strict=True)
    if not any(math.isnan(float(each.sum())) for each in columns.values()):
        return [dict(zip(names, row, strict=True)) for row in rows]
    return [
        {name: value for name, value in zip(names, row, strict=True) if value == value}  # noqa: PLR0124 - NaN
        for row in rows
    ]


def _or_none(values: list[float]) -> list[float | None]:
    return [_known(value) for value in values]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
