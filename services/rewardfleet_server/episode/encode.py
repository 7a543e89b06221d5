"""Encoding of results by msgspec: one pydantic model per item would cost more than scoring."""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import repeat
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.episodes import BatchResult, RunningMeanStd, TemperatureBin
from rewardfleet.episodes.arrays import Floats
from rewardfleet.wire.score import Status, Timing

#: The `backend` of every score.
BACKEND = "episode"

#: The provenance that all scores share.
PROVENANCE: dict[str, JsonValue] = {"service": f"rewardfleet {__version__}"}


class Result(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `EpisodeScore` that are encoded; a test checks that they agree.

    A struct takes half the time of a dict.
    """

    uid: str
    score: float | None
    status: Status
    keep: bool
    backend: str
    cause: str | None = None
    components: dict[str, float] = {}
    details: dict[str, float] = {}
    drop_reason: str | None = None
    cluster: int | None = None
    pseudo_label: int | None = None
    step_rewards: list[float] | None = None
    token_positions: list[int] | None = None
    error: dict[str, Any] | None = None


def encode_batch(
    result: BatchResult,
    bins: list[TemperatureBin],
    running: RunningMeanStd | None,
    request_id: str | None,
    timing: Timing,
) -> bytes:
    """Encode the response to a batch, an `EpisodeBatchResponse`."""
    response: dict[str, Any] = {
        "results": results(result, request_id),
        "groups": group_stats(result),
        "temperatures": [_without_nan(vars(each)) for each in bins],
        "provenance": {BACKEND: PROVENANCE},
        "timing_ms": timing.model_dump(),
    }
    if running is not None:
        moments = {"mean": running.mean, "variance": running.variance}
        response["running"] = {"count": running.count, **moments}
    return msgspec.json.encode(response)


def results(result: BatchResult, request_id: str | None) -> list[Result]:
    """Return one result per item, in order."""
    items, ok = result.batch.items, Status.OK
    encoded = [
        Result(item.uid, score, ok, keep, BACKEND, cause, components, details)
        for item, score, components, details, keep, cause in zip(
            items,
            result.scores.tolist(),
            _figures(result.components, len(items)),
            _figures(result.details, len(items)),
            result.keep.tolist(),
            result.causes,
            strict=True,
        )
    ]
    for index, reason in result.drop_reasons.items():
        encoded[index].drop_reason = reason
    for index, step_rewards in result.step_rewards.items():
        encoded[index].step_rewards = step_rewards.tolist()
        encoded[index].token_positions = items[index].step_token_ends
    if result.clusters is not None:
        labels, votes = result.clusters.labels.tolist(), result.clusters.is_majority.tolist()
        for each, label, vote in zip(encoded, labels, votes, strict=True):
            if label >= 0:
                each.cluster, each.pseudo_label = label, int(vote)
    for index, error in result.batch.reasons.items():
        status = Status.ABSTAINED if error is None else Status.ERROR
        cause = result.causes[index]
        encoded[index] = Result(items[index].uid, None, status, False, BACKEND, cause)
        if error is not None:
            encoded[index].error = error.problem(request_id).model_dump(mode="json")
    return encoded


def _figures(columns: Mapping[str, Floats], count: int) -> list[dict[str, float]]:
    """Return the values of columns for each item, without NaN."""
    if not columns:
        return [{}] * count
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return [{name: value} if value == value else {} for value in column.tolist()]  # noqa: PLR0124 - NaN
    names, rows = list(columns), zip(*(each.tolist() for each in columns.values()), strict=True)
    if not any(math.isnan(float(each.sum())) for each in columns.values()):
        # `zip(..., strict=True)` per row would take twice the time.
        return list(map(dict, map(zip, repeat(names), rows)))
    return [
        {name: value for name, value in zip(names, row, strict=True) if value == value}  # noqa: PLR0124 - NaN
        for row in rows
    ]


def statuses(result: BatchResult) -> Mapping[Status, int]:
    """Return how many items have each status."""
    reasons = result.batch.reasons.values()
    counts = Counter(Status.ABSTAINED if each is None else Status.ERROR for each in reasons)
    counts[Status.OK] = len(result.scores) - len(reasons)
    return +counts  # without zeros


def group_stats(result: BatchResult) -> list[dict[str, Any]]:
    """Return one `GroupStats` per group."""
    columns, clusters = {**vars(result.groups)}, result.clusters
    if clusters is not None:
        columns["clusters"] = clusters.counts
        columns["majority_ratio"] = clusters.majority_ratio
        columns["diversity"] = clusters.diversity
    rows = zip(*(each.tolist() for each in columns.values()), strict=True)
    return [_without_nan(dict(zip(columns, row, strict=True))) for row in rows]


def _without_nan(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in fields.items()}  # noqa: PLR0124 - NaN
