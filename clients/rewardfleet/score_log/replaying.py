"""Scoring what a log has again: its requests, and what changes in scores, groups and advantages."""

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rewardfleet.arrays import encode_png
from rewardfleet.bulk.requests import Item, RequestBuilder
from rewardfleet.bulk.rows import Row
from rewardfleet.episodes import RunningMeanStd, aggregate, compute_rewards, validate_batch
from rewardfleet.services import SERVICES
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Request
from rewardfleet.wire.validation import validate

from .reading import Filters, query, rows_of
from .strip import frames_of

if TYPE_CHECKING:
    import duckdb

#: The `run` of the requests of a replay, which distinguishes them in the log of their service.
REPLAY = "replay"
_ORDER = "time, call, id, uid"
#: Rewards that differ by less are equal.
_TOLERANCE = 1e-9
#: Added to the standard deviation of a group, as trainers do.
_EPSILON = 1e-6


@dataclass
class Recorded:
    """A record of a log, and what became of it."""

    id: str
    run: str | None
    step: int | None
    uid: str | None
    batch: tuple[float, str | None]  #: what was scored together has the same one
    before: float | None  #: its score
    price: float | None  #: lambda, of an answer that paid for tools
    key: str  #: of what is scored for it, once: its id, and the step that older ids lack
    prompt: str = ""  #: a digest of what its group has in common
    after: float | None = None
    problem: str | None = None  #: why there is no score now


@dataclass
class Selected:
    """The records that are scored again, the oldest first."""

    service: str
    records: list[Recorded]
    condition: str  #: which they are, in SQL
    values: list[Any]  #: of its parameters

    @property
    def digest(self) -> str:
        """What changes if other records are selected."""
        keys = "\n".join(each.key for each in self.records)
        return hashlib.sha256(keys.encode()).hexdigest()


def select_records(connection: "duckdb.DuckDBPyConnection", filters: Filters) -> Selected:
    """Return the records with a score or an abstention, and with a request.

    Raises:
        ValueError: There is none, or they are of several services.
    """
    condition, values = filters.sql()
    condition = f"status <> 'error' AND request IS NOT NULL AND {condition}"
    if filters.run is None:
        condition += f" AND run IS DISTINCT FROM '{REPLAY}'"
    # Of older records, a component.
    price = "coalesce(json_extract(details, '$.details.lambda')::DOUBLE, components['lambda'])"
    names = f"service, id, run, step, uid, call, time, score, {price}"
    rows = query(
        connection, f"SELECT {names} FROM scores WHERE {condition} ORDER BY {_ORDER}", values
    )
    services = sorted({row[0] for row in rows})
    if not services:
        raise ValueError(
            "the log has no records with a score and a request; of an output of `rewardfleet "
            "score`, score the input again"
        )
    if len(services) > 1:
        found = " and ".join(services)
        raise ValueError(f"the log has records of {found}: select one service with --service")
    is_label = SERVICES[services[0]].client.has_run_label
    keys = (_key(row[1], None if is_label else row[3]) for row in rows)
    records = [
        Recorded(id_, run, step, uid, (time, call), score, price, next(keys))
        for _, id_, run, step, uid, call, time, score, price in rows
    ]
    return Selected(services[0], records, condition, values)


def _key(id_: str, step: int | None) -> str:
    return id_ if step is None else f"{id_} {step}"


@dataclass
class ReplayBuilder(RequestBuilder):
    """Builds the requests of records.

    Args:
        changes: New values of fields; `tests.checker` is a field of a field.
    """

    #: How many requests have small frames of the log in place of the clip.
    small: int = 0

    def recorded_items(
        self, connection: "duckdb.DuckDBPyConnection", selected: Selected
    ) -> Iterator[Item]:
        """Yield one item for each request, and note the prompts of its records."""
        by_key: dict[str, list[Recorded]] = defaultdict(list)
        for record in selected.records:
            by_key[record.key].append(record)
        steps = "NULL" if self.declared.client.has_run_label else "step"
        names = ", ".join(f"any_value({name})" for name in ("request", "frames", "provenance"))
        sql = f"SELECT id, {steps}, {names} FROM scores WHERE {selected.condition} GROUP BY ALL"
        rows = rows_of(connection, f"{sql} ORDER BY min(time), 1, 2", selected.values)
        for index, (id_, step, request, frames, provenance) in enumerate(rows):
            fields, key = json.loads(request), _key(id_, step)
            prompt = prompt_of(self.service, fields)
            for record in by_key[key]:
                record.prompt = prompt
            seen = json.loads(provenance or "{}").get("frames") or {}
            given = {
                "request": fields,
                "frames": frames,
                "count": len(seen.get("indices", ())),
                "step": step,
            }
            yield Item(index, Row(f"record {id_}", given), uid=key)

    def build(self, item: Item) -> Request:
        """Return the request of an item.

        Raises:
            InvalidRequest: The log does not have all of it, or it is not valid with the changes.
        """
        fields = dict(item.row.fields["request"])
        if self.declared.scores == "clip":
            fields = self._with_clip(fields, item.row.fields)
        if self.declared.client.has_run_label:
            fields["run"] = REPLAY
        elif item.row.fields["step"] is not None:  # for schedules; a run would name a budget
            fields["step"] = item.row.fields["step"]
        return validate(self.declared.client.request_type, changed(fields, self.changes))

    def _with_clip(self, fields: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        if "video_path" in fields:
            return fields
        if "video_url" in fields and "***" not in fields["video_url"]:
            return fields
        if given["frames"] is None:
            raise InvalidRequest("neither the clip nor its frames are in the log")
        self.small += 1
        content = {"frames", "fps", "sha256", "video_url", "start_s", "end_s"}
        left = {name: value for name, value in fields.items() if name not in content}
        frames = frames_of(given["frames"], given["count"])
        return {**left, "frames_base64": [encode_png(frame) for frame in frames]}


def changed(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with new values; a name with dots is that of a field of a field."""
    new = dict(fields)
    for name, value in changes.items():
        outer, dot, inner = name.partition(".")
        if dot:
            found = new.get(outer)
            new[outer] = changed(found if isinstance(found, dict) else {}, {inner: value})
        else:
            new[name] = value
    return new


def prompt_of(service: str, fields: Mapping[str, Any]) -> str:
    """Return a digest of what the samples of a prompt have in common."""
    common = fields.get(SERVICES[service].group)
    return hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()


def replay_episodes(
    connection: "duckdb.DuckDBPyConnection", selected: Selected, changes: Mapping[str, Any]
) -> None:
    """Score batches of episodes again, in this process, as they depend on nothing else."""
    sql = f"SELECT request, details FROM scores WHERE {selected.condition} ORDER BY {_ORDER}"
    rows = (map(json.loads, row) for row in rows_of(connection, sql, selected.values))
    pairs = zip(selected.records, rows, strict=True)
    for _, batch in itertools.groupby(pairs, key=lambda pair: pair[0].batch):
        records, given = zip(*batch, strict=True)
        fields, details = zip(*given, strict=True)
        for record, each in zip(records, fields, strict=True):
            record.prompt = prompt_of("episode", each)
        try:
            _replay_batch(records, fields, changes, details[0].get("running"))
        except RewardFleetError as error:
            for record in records:
                record.problem = error.detail


def _replay_batch(
    records: Sequence[Recorded],
    fields: Sequence[dict[str, Any]],
    changes: Mapping[str, Any],
    running: Mapping[str, Any] | None,
) -> None:
    given = [each.pop("options", {}) for each in fields]  # those of the batch
    options = validate(EpisodeOptions, changed(given[0], changes))
    if options.normalize == "running" and running is None:
        raise InvalidRequest("normalize: running depends on the state of the run")
    # The statistics that the run had then, with these rewards.
    statistics = running and RunningMeanStd(
        running["count"], running["mean"], running["variance"] * running["count"]
    )
    items = [
        validate(EpisodeRequest, {**each, "uid": record.uid or str(index)})
        for index, (record, each) in enumerate(zip(records, fields, strict=True))
    ]
    rewards = compute_rewards(validate_batch(items, options), options)
    result = aggregate(rewards, options, statistics or None)
    for index, record in enumerate(records):
        score = float(result.scores[index])
        record.after = None if math.isnan(score) else score
        if (reason := result.batch.reasons.get(index)) is not None:
            record.problem = reason.detail


@dataclass
class Comparison:
    """What has changed."""

    #: A line for each record of a group with a change.
    lines: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0  #: how many records there are
    changed: int = 0  #: how many of them have another reward
    missing: int = 0  #: how many had a score and have none
    #: How many groups there are, and in how many something changed.
    groups: tuple[int, int] = (0, 0)

    @property
    def share(self) -> float:
        """The share of records with another reward."""
        return self.changed / max(self.records, 1)


def compare(records: Sequence[Recorded], before: float | None, after: float | None) -> Comparison:
    """Compare rewards, group by group: the records of a prompt, in a step of a run.

    Args:
        before, after: The least score of a reward of 1, else 0; None: a reward is the score.
    """
    groups: dict[tuple[Any, ...], list[Recorded]] = defaultdict(list)
    for record in records:
        groups[record.run, record.step, record.prompt].append(record)
    found = Comparison(records=len(records))
    changed_groups = 0
    for (_, _, prompt), members in groups.items():
        old = [_reward(each.before, before) for each in members]
        new = [_reward(each.after, after) for each in members]
        changes = [_differ(*pair) for pair in zip(old, new, strict=True)]
        found.changed += sum(changes)
        found.missing += sum(a is not None and b is None for a, b in zip(old, new, strict=True))
        if not any(changes):
            continue
        changed_groups += 1
        advantages = zip(_advantages(old), _advantages(new), strict=True)
        means = {"group_reward_before": _mean(old), "group_reward_after": _mean(new)}
        for each, is_changed, rewards, (first, second) in zip(
            members, changes, zip(old, new, strict=True), advantages, strict=True
        ):
            found.lines.append(
                {
                    "id": each.id,
                    "run": each.run,
                    "step": each.step,
                    "uid": each.uid,
                    "group": prompt[:16],
                    "changed": is_changed,
                    "reward_before": rewards[0],
                    "reward_after": rewards[1],
                    "advantage_before": first,
                    "advantage_after": second,
                    **means,
                    "problem": each.problem,
                }
            )
    found.groups = len(groups), changed_groups
    return found


def _reward(score: float | None, least: float | None) -> float | None:
    return score if score is None or least is None else float(score >= least)


def _differ(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return not math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _mean(rewards: Sequence[float | None]) -> float | None:
    given = [each for each in rewards if each is not None]
    return float(np.mean(given)) if given else None


def _advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Return (reward - mean) / standard deviation; 0 in a group of one, None without a reward."""
    given = [each for each in rewards if each is not None]
    mean = float(np.mean(given)) if given else 0.0
    std = float(np.std(given, ddof=1)) if len(given) > 1 else 0.0
    return [None if each is None else (each - mean) / (std + _EPSILON) for each in rewards]
