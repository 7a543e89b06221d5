"""Scoring what a log has again: its requests, and what changes in scores, groups and advantages."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardfleet.arrays import encode_png
from rewardfleet.bulk.requests import Item, RequestBuilder
from rewardfleet.bulk.rows import Row, clip_of
from rewardfleet.episodes import RunningMeanStd, aggregate, compute_rewards, validate_batch
from rewardfleet.services import SERVICES
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Request
from rewardfleet.wire.validation import validate

from .reading import Filters, dicts_of, open_log, query, rows_of
from .strip import frames_of

if TYPE_CHECKING:
    import duckdb

#: The `run` of the requests of a replay, which distinguishes them in the log of their service.
REPLAY = "replay"
#: The records that are scored again. Of older ones, the price that an answer paid for tools is a
#: component.
_SELECT = """
CREATE TABLE recorded AS
SELECT row_number() OVER (ORDER BY time, call, id, uid) AS n, id, run, step, uid, score,
       coalesce(json_extract(details, '$.details.lambda')::DOUBLE, components['lambda']) AS price,
       sha256(coalesce(json_extract(request, '$.{group}'), 'null')) AS prompt, {key} AS key{batch}
FROM scores WHERE {condition}
"""
#: Both rewards of each record. The budget of the run is not asked: the price is the one that the
#: record had.
_JOIN = """
CREATE TABLE compared AS
SELECT n, id, run, step, uid, prompt, problem,
       CASE WHEN coalesce(price, 0) = 0 OR replayed.score IS NULL THEN replayed.score
            ELSE json_extract(details, '$.details.task')::DOUBLE
                 - price * json_extract(details, '$.details.cost')::DOUBLE END AS new_score,
       {before} AS reward_before, {after} AS reward_after,
       coalesce(abs(reward_before - reward_after) > 1e-9,
                (reward_before IS NULL) <> (reward_after IS NULL)) AS changed
FROM recorded LEFT JOIN replayed USING (key)
"""
_COUNT = """
SELECT count(*) AS records, count(*) FILTER (changed) AS changed,
       count(*) FILTER (changed) / greatest(count(*), 1) AS share, count(reward_after) AS scored,
       count(reward_before) FILTER (reward_after IS NULL) AS missing,
       count(DISTINCT (run, step, prompt)) AS groups,
       count(DISTINCT (run, step, prompt)) FILTER (changed) AS changed_groups
FROM compared
"""
_FIGURES = """
(reward_{0} - avg(reward_{0}) OVER g) / (coalesce(stddev_samp(reward_{0}) OVER g, 0) + 1e-6)
    AS advantage_{0}, avg(reward_{0}) OVER g AS group_reward_{0}
"""
#: The records of groups with a change.
_CHANGES = f"""
SELECT id, run, step, uid, left(prompt, 16) AS "group", changed, reward_before, reward_after,
       {_FIGURES.format("before")}, {_FIGURES.format("after")}, problem
FROM compared
WINDOW g AS (PARTITION BY run, step, prompt)
QUALIFY bool_or(changed) OVER g
ORDER BY run, step, prompt, n
"""


@dataclass
class Selected:
    """The records that are scored again: the table `recorded`."""

    service: str
    key: str  #: what a record and its new score have in common, in SQL
    condition: str  #: which records they are, in SQL
    values: list[Any]  #: of its parameters
    requests: int  #: how many they have, of which each is scored once
    digest: str  #: changes if other records are selected


def select_records(connection: "duckdb.DuckDBPyConnection", filters: Filters) -> Selected:
    """Select the records with a score or an abstention, and with a request.

    Raises:
        ValueError: There is none, or they are of several services.
    """
    condition, values = filters.sql()
    condition = f"status <> 'error' AND request IS NOT NULL AND {condition}"
    if filters.run is None:
        condition += f" AND run IS DISTINCT FROM '{REPLAY}'"
    found = query(connection, f"SELECT DISTINCT service FROM scores WHERE {condition}", values)
    services = sorted(name for (name,) in found)
    if not services:
        raise ValueError("there are no records with a score and a request")
    if len(services) > 1:
        names = " and ".join(services)
        raise ValueError(f"the log has records of {names}: select one service with --service")
    declared = SERVICES[services[0]]
    batch = ""
    if declared.scores == "episode":  # whose scores depend on each other
        key, batch = "n::VARCHAR", ", time, call, request, details AS old_details"
    else:  # older ids are the same for all steps
        key = "id" if declared.client.has_run_label else "concat_ws(' ', id, step)"
    select = _SELECT.format(group=declared.group, key=key, batch=batch, condition=condition)
    query(connection, select, values)
    digest = "sha256(string_agg(key, chr(10) ORDER BY n))"
    [totals] = query(connection, f"SELECT count(DISTINCT key), {digest} FROM recorded")
    return Selected(services[0], key, condition, values, *totals)


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
        """Yield one item for each request."""
        columns = ("id", "step", "request", "frames", "provenance", "path", "place")
        names = ", ".join(f"any_value({name})" for name in columns)
        sql = f"SELECT {selected.key}, {names} FROM scores WHERE {selected.condition}"
        rows = rows_of(connection, f"{sql} GROUP BY 1 ORDER BY min(time), 1", selected.values)
        for index, (key, id_, *values) in enumerate(rows):
            fields = dict(zip(columns[1:], values, strict=True))
            yield Item(index, Row(f"record {id_}", fields), uid=key)

    def build(self, item: Item) -> Request:
        """Return the request of an item.

        Raises:
            InvalidRequest: The log does not have all of it, or it is not valid with the changes.
        """
        record = item.row.fields
        fields = json.loads(record["request"])
        if self.declared.scores == "clip":
            fields = self._with_clip(fields, record)
        if self.declared.client.has_run_label:
            fields["run"] = REPLAY
        elif record["step"] is not None:  # for schedules; a run would name a budget
            fields["step"] = record["step"]
        return validate(self.declared.client.request_type, changed(fields, self.changes))

    def _with_clip(self, fields: dict[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
        if "video_path" in fields or "***" not in fields.get("video_url", "***"):
            return fields
        if content := clip_of(record, fields.get("sha256")):  # of an input
            given = {name: value for name, value in fields.items() if name != "sha256"}
            return {**given, "video_base64": content}
        if record["frames"] is None:
            raise InvalidRequest("the clip is gone or has changed, and its frames are not kept")
        self.small += 1
        of_content = {"frames", "fps", "sha256", "video_url", "start_s", "end_s"}
        left = {name: value for name, value in fields.items() if name not in of_content}
        seen = json.loads(record["provenance"] or "{}").get("frames") or {}
        frames = frames_of(record["frames"], len(seen.get("indices", ())))
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


def replay_episodes(connection: "duckdb.DuckDBPyConnection", changes: Mapping[str, Any]) -> None:
    """Score batches of episodes again, in this process, as they depend on nothing else.

    The table `replayed` gets the scores.
    """
    columns = "time, call, uid, request, old_details"
    rows = rows_of(connection, f"SELECT {columns} FROM recorded ORDER BY n")
    new: list[tuple[float | None, str | None]] = []
    for _, batch in itertools.groupby(rows, key=lambda row: row[:2]):  # what was scored together
        records = [*batch]
        try:
            new += _replay_batch(records, changes)
        except RewardFleetError as error:
            new += [(None, error.detail)] * len(records)
    scores, problems = zip(*new, strict=True)
    connection.execute(
        "CREATE TABLE replayed AS SELECT unnest($1::DOUBLE[]) AS score, "
        "unnest($2::VARCHAR[]) AS problem, unnest($3::VARCHAR[]) AS key, NULL::VARCHAR AS details",
        [scores, problems, [str(n) for n in range(1, len(new) + 1)]],
    )


def _replay_batch(
    records: Sequence[tuple[Any, ...]], changes: Mapping[str, Any]
) -> list[tuple[float | None, str | None]]:
    fields = [json.loads(request) for *_, request, _ in records]
    given = [each.pop("options", {}) for each in fields]  # those of the batch
    options = validate(EpisodeOptions, changed(given[0], changes))
    running = json.loads(records[0][-1]).get("running")
    if options.normalize == "running" and running is None:
        raise InvalidRequest("normalize: running depends on the state of the run")
    # The statistics that the run had then, with these rewards.
    statistics = running and RunningMeanStd(
        running["count"], running["mean"], running["variance"] * running["count"]
    )
    items = [
        validate(EpisodeRequest, {**each, "uid": uid or str(index)})
        for index, (each, (_, _, uid, *_)) in enumerate(zip(fields, records, strict=True))
    ]
    rewards = compute_rewards(validate_batch(items, options), options)
    result = aggregate(rewards, options, statistics or None)
    reasons = (result.batch.reasons.get(index) for index in range(len(items)))
    return [
        (None if math.isnan(score) else score, reason.detail if reason else None)
        for score, reason in zip(map(float, result.scores), reasons, strict=True)
    ]


def take_scores(connection: "duckdb.DuckDBPyConnection", output: Path) -> None:
    """Make the table `replayed` of an output of `rewardfleet score`, whose uids are keys."""
    with open_log([output], connection) as log:
        log.execute(
            "CREATE TABLE replayed AS "
            "SELECT score, error_detail AS problem, uid AS key, details FROM scores"
        )


def compare(
    connection: "duckdb.DuckDBPyConnection", before: float | None, after: float | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compare rewards, group by group: the records of a prompt, in a step of a run.

    Args:
        before, after: The least score of a reward of 1, else 0; None: a reward is the score.

    Returns:
        What `changes.jsonl` has; and how many `records` and `groups` there are, how many of these
        have another reward (`changed`, its `share`, `changed_groups`), how many have a score now
        (`scored`), and how many had one and have none (`missing`).
    """

    def reward(score: str, least: float | None) -> str:
        return score if least is None else f"({score} >= '{least}'::DOUBLE)::DOUBLE"

    join = _JOIN.format(before=reward("recorded.score", before), after=reward("new_score", after))
    query(connection, join)
    [totals] = dicts_of(connection, _COUNT)
    return dicts_of(connection, _CHANGES), totals
