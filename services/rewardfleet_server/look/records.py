"""The records that the page shows: a table in memory, read from logs and outputs.

Values of requests only ever reach DuckDB as parameters; names of columns come from lists here.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from rewardfleet.score_log.copying import LogCopies
from rewardfleet.score_log.reading import connect, open_log, query
from rewardfleet.services import SERVICES

#: Records of one page of the table.
PAGE = 50
#: The columns by which records are filtered by value, and how many values are offered for each.
FACETS = ("service", "task", "judge", "status", "cause", "run", "source")
_MOST_VALUES = 200
#: The columns by which the table can be sorted.
SORTED = ("time", "score", "step", "task", "judge", "status", "cause", "uid", "total_ms")
#: Steps of a histogram, and members of a group, at most.
_MOST_STEPS, _MOST_MEMBERS = 120, 256
#: What is read of the view `scores`; its parameters are two lists: of copies, and their names.
#: `n` is a number of the record, the same whenever it is read, with less than 17 digits. A list of
#: paths takes less time than several calls.
_READ = """
SELECT
  (hash(folder, service, id, time, uid, call, row) >> 12)::BIGINT AS n,
  id, time, service, run, step, uid, call, backend AS judge, status, score, reward, cause, cached,
  place, path, metadata, label_differs, timing_ms_total AS total_ms,
  asked[1] AS task, asked[2] AS episodes,
  coalesce(answered[1], asked[3], asked[4]) AS part,
  coalesce(json_array_length(answered[2]), 0) AS suspicions,
  CASE WHEN service = 'video' THEN concat(part, task) ELSE id END AS subject,
  request, details, components, provenance, error_kind, error_detail,
  frames IS NOT NULL AS has_frames, label_fraction, source AS file,
  coalesce(list_extract($names::VARCHAR[], list_position($copies::VARCHAR[], folder)), folder)
    AS source
FROM (
  SELECT *, parse_dirpath(source) AS folder,
    json_extract_string(request, ['$.task_text', '$.group', '$.sha256', '$.video_path']) AS asked,
    json_extract_string(details, ['$.code', '$.suspicions']) AS answered
  FROM scores
)
"""
#: What the table of the page shows of each record.
_SHOWN = (
    "n, id, time, service, run, step, uid, judge, status, score, cause, cached, total_ms, task, "
    "suspicions, label_differs, place"
)


@dataclass(frozen=True)
class Filter:
    """Which records are shown, and in which order."""

    values: Mapping[str, Any] = field(default_factory=dict)  #: of `FACETS`, `uid` and `step`
    text: str = ""  #: occurs in the request, the details or the uid, in any case
    suspicious: bool = False
    label_differs: bool = False
    sort: str = "time"
    descending: bool = True

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL, and its parameters."""
        conditions = [f"{name} = ?" for name in self.values]
        parameters = [*self.values.values()]
        if self.text:
            # As JSON has it: requests in ASCII, details not always.
            text = self.text.lower()
            written = {json.dumps(text, ensure_ascii=each)[1:-1] for each in (True, False)}
            sought = [(name, each) for name in ("request", "details") for each in written]
            sought.append(("concat_ws(' ', uid, task)", text))
            parts = [f"contains(lower({name}), ?)" for name, _ in sought]
            conditions.append(f"({' OR '.join(parts)})")
            parameters += [each for _, each in sought]
        if self.suspicious:
            conditions.append("suspicions > 0")
        if self.label_differs:
            conditions.append("label_differs")
        return " AND ".join(conditions) or "true", parameters


class Records:
    """The records of score logs and of outputs of `rewardfleet score`, and of logs of services.

    Args:
        decode: Returns frames of the clip or reference that has a `video_path`, or of an input, a
            `path` and a `place`; None if it cannot.

    Raises:
        ValueError: A folder is neither, or DuckDB is not installed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        copies: Sequence[LogCopies] = (),
        *,
        decode: Callable[[Mapping[str, Any]], bytes | None] = lambda _: None,
    ) -> None:
        self.decode, self._copies = decode, copies
        self._folders = [*folders, *(each.folder for each in copies)]
        self._connection = connect()
        self._lock = threading.Lock()  # one thread at a time uses the connection
        self._problem = ""
        self._seen = self._stamp()
        self._read()

    def refresh(self) -> None:
        """Read the records again if there are others. What fails is a problem; see `problems`.

        One thread at a time may call it.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self._read()
        except (ValueError, OSError, duckdb.Error) as error:
            self._problem = f"new records cannot be read: {error}"
        else:
            self._seen, self._problem = stamp, ""

    def _read(self) -> None:
        names = {
            "copies": [str(each.folder) for each in self._copies],
            "names": [each.name for each in self._copies],
        }
        with open_log(self._folders, self._connection) as log:
            log.execute(f"CREATE OR REPLACE TABLE items AS {_READ}", names)

    def problems(self) -> list[str]:
        """Return why records may be missing."""
        copies = (each for copy in self._copies for each in copy.problems())
        return [*filter(None, [self._problem]), *copies]

    def _stamp(self) -> object:
        found = []
        for path in (each for folder in self._folders for each in folder.glob("*.*")):
            with suppress(FileNotFoundError):  # a segment was rewritten
                stat = path.stat()
                found.append((path, stat.st_size, stat.st_mtime_ns))
        return sorted(found)

    def page(self, chosen: Filter, start: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the records of a page, and how many there are in all."""
        where, parameters = chosen.where()
        direction = "DESC" if chosen.descending else "ASC"
        # To search the texts takes longer than the rest, so that is done once.
        total = "count(*) OVER ()" if chosen.text else "NULL"
        rows = self._rows(
            f"SELECT {_SHOWN}, {total} AS total FROM items WHERE {where} "
            f"ORDER BY {chosen.sort} {direction} NULLS LAST, n LIMIT {PAGE} OFFSET ?",
            [*parameters, start],
        )
        if chosen.text and rows:
            return rows, rows[0]["total"]
        counted = self._rows(f"SELECT count(*) AS total FROM items WHERE {where}", parameters)
        return rows, counted[0]["total"]

    def facets(self) -> dict[str, list[str]]:
        """Return the most frequent values of each column that is filtered by value."""
        found = {}
        for name in FACETS:
            rows = self._rows(
                f"SELECT {name} AS value FROM items WHERE value IS NOT NULL "
                f"GROUP BY value ORDER BY count(*) DESC, value LIMIT {_MOST_VALUES}"
            )
            found[name] = [row["value"] for row in rows]
        return found

    def record(self, number: int) -> dict[str, Any] | None:
        """Return all of a record; None if there is none of this number."""
        return next(iter(self._rows("SELECT * FROM items WHERE n = ?", [number])), None)

    def to_label(self, labeled: Collection[str], after: str) -> tuple[dict[str, Any] | None, int]:
        """Return a record that was drawn for labels and has none, and how many there are.

        They come by the digests of their requests, so those that are labeled first are a random
        part of them as well. The record's id comes after `after`; after the last one, the first.
        """
        found = self._rows(
            "SELECT *, count(DISTINCT id) OVER () AS total FROM items WHERE label_fraction IS NOT "
            "NULL AND id NOT IN (SELECT unnest(?::VARCHAR[])) ORDER BY id <= ?, id, n LIMIT 1",
            [list(labeled), after],
        )
        return (found[0], found[0].pop("total")) if found else (None, 0)

    def frames(self, record: Mapping[str, Any]) -> bytes | None:
        """Return the frames of a clip as one JPEG; None if they are not to be had."""
        if not record["has_frames"]:
            request = json.loads(record["request"] or "{}")
            if "video_path" in request and record["path"] is None:
                return self.decode(request)
            if record["place"] is None:  # not of an input, whose owner gave the output as well
                return None
            return self.decode({**request, "path": record["path"], "place": record["place"]})
        sql = "SELECT frames FROM scores WHERE source = ? AND id = ? AND frames IS NOT NULL"
        with open_log(self._folders) as log, suppress(ValueError):  # its file may be replaced now
            for (frames,) in query(log, sql, [record["file"], record["id"]]):
                return bytes(frames)
        return None

    def group(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the records of the group of an episode, that of the episode included."""
        if record["episodes"] is None:
            return []
        return self._rows(
            f"SELECT {_SHOWN}, episodes, components, request, details FROM items WHERE "
            "episodes = ? AND run IS NOT DISTINCT FROM ? AND step IS NOT DISTINCT FROM ? "
            # Batches that say no step have groups of the same names.
            "AND (step IS NOT NULL OR (call IS NOT DISTINCT FROM ? AND source = ?)) "
            f"ORDER BY time, uid LIMIT {_MOST_MEMBERS}",
            [*map(record.get, ("episodes", "run", "step", "call", "source"))],
        )

    def related(self, record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Return other records of the same request, and of the same program or clip."""
        same = {
            "Same request": ("id = ?", [record["id"]]),
            "Same program or clip": ("part = ? AND id != ?", [record["part"], record["id"]]),
        }
        query = f"SELECT {_SHOWN}, components FROM items WHERE n != ? AND %s ORDER BY time, n"
        found = {
            title: self._rows(f"{query % where} LIMIT {PAGE}", [record["n"], *parameters])
            for title, (where, parameters) in same.items()
        }
        return {title: rows for title, rows in found.items() if rows}

    def pairs(
        self, by: str, first: str, second: str, start: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the requests that two judges, or two logs, have scored: disagreements first.

        The first one has `score` and `status`, the second one `other_score` and `other_status`.
        """
        newest = f"SELECT * FROM items WHERE {by} = ? QUALIFY row_number() OVER "
        newest += "(PARTITION BY subject ORDER BY time DESC NULLS LAST, n) = 1"
        joined = f"FROM ({newest}) a JOIN ({newest}) b USING (subject)"
        total = self._rows(f"SELECT count(*) AS total {joined}", [first, second])
        rows = self._rows(
            "SELECT a.n, a.task, a.uid, a.score, a.status, a.cause, b.n AS other_n, "
            "b.score AS other_score, b.status AS other_status, b.cause AS other_cause, "
            f"abs(a.score - b.score) AS difference {joined} "
            "ORDER BY a.status = b.status, difference DESC NULLS LAST, a.n "
            f"LIMIT {PAGE} OFFSET ?",
            [first, second, start],
        )
        return rows, total[0]["total"]

    def steps(self, chosen: Filter) -> dict[str, list[dict[str, Any]]]:
        """Return by service the last steps, and how many rewards are where in its range.

        `counts` are those below the range, in its parts, and above it; `missing` have no score.
        """
        where, parameters = chosen.where()
        found = {}
        for service in self.facets()["service"]:
            bounds = SERVICES[service].score_bounds
            # The last bound is in the last part.
            place = f"len(list_filter({[*bounds]}, lambda bound: bound <= reward))"
            place = f"CASE WHEN reward = {bounds[-1]} THEN {len(bounds) - 1} ELSE {place} END"
            counts = ", ".join(f"count(reward) FILTER (bin = {n})" for n in range(len(bounds) + 1))
            rows = self._rows(
                f"SELECT step, [{counts}] AS counts, count(*) FILTER (score IS NULL) AS missing, "
                f"sum(reward) AS total FROM (SELECT *, {place} AS bin FROM items "
                f"WHERE service = ? AND {where}) "
                f"GROUP BY step ORDER BY step DESC LIMIT {_MOST_STEPS}",
                [service, *parameters],
            )
            if rows:
                found[service] = rows[::-1]
        return found

    def _rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with self._lock:
            result = self._connection.execute(query, parameters)
            names = [each[0] for each in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
