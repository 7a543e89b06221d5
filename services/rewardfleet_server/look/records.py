"""The records that the page shows: a table in memory, filled from logs and outputs.

Values of requests only ever reach DuckDB as parameters; names of columns come from lists here.
"""

import json
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from rewardfleet.score_log.reading import open_log

from .details import Explanation
from .references import Reference

#: Records of one page of the table.
PAGE = 50
#: The columns by which records are filtered by value, and how many values are offered for each.
FACETS = ("service", "task", "judge", "status", "cause", "run", "source")
_MOST_VALUES = 200
#: The columns by which the table can be sorted.
SORTED = ("time", "score", "step", "task", "judge", "status", "cause", "uid", "total_ms")
#: Steps of a histogram, and members of a group, at most.
_MOST_STEPS, _MOST_MEMBERS = 120, 256
#: The columns of the table, besides its number `n`, by what they are computed from.
_COLUMNS = {
    "id": "id",
    "time": "time",
    "service": "service",
    "run": "run",
    "step": "step",
    "uid": "uid",
    "call": "call",
    "judge": "backend",
    "status": "status",
    "score": "score",
    "cause": "cause",
    "cached": "cached",
    "total_ms": "timing_ms_total",
    "task": "json_extract_string(request, '$.task_text')",
    "suspicions": "coalesce(json_array_length(details, '$.suspicions'), 0)",
    "episodes": "json_extract_string(request, '$.group')",
    "part": "coalesce(json_extract_string(details, '$.code'), "
    "json_extract_string(request, '$.sha256'), json_extract_string(request, '$.video_path'))",
    "request": "request",
    "details": "details",
    "components": "components",
    "provenance": "provenance",
    "error_kind": "error_kind",
    "error_detail": "error_detail",
    "has_frames": "frames IS NOT NULL",
    "label_fraction": "label_fraction",
    "file": "source",
    "source": "parse_dirpath(source)",
}
#: What the table of the page shows of each record.
_SHOWN = (
    "n, id, time, service, run, step, uid, judge, status, score, cause, cached, total_ms, task, "
    "suspicions"
)


@dataclass(frozen=True)
class Filter:
    """Which records are shown, and in which order."""

    values: Mapping[str, str] = field(default_factory=dict)  #: of columns in `FACETS`
    text: str = ""  #: occurs in the request, the details or the uid, in any case
    step: int | None = None
    uid: str = ""
    suspicious: bool = False
    sort: str = "time"
    descending: bool = True

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL, and its parameters."""
        conditions = [f"{name} = ?" for name in self.values]
        parameters: list[Any] = list(self.values.values())
        if self.text:
            conditions.append("contains(lower(text), ?)")
            parameters.append(self.text.lower())
        if self.step is not None:
            conditions.append("step = ?")
            parameters.append(self.step)
        if self.uid:
            conditions.append("uid = ?")
            parameters.append(self.uid)
        if self.suspicious:
            conditions.append("suspicions > 0")
        return " AND ".join(conditions) or "true", parameters


class Records:
    """The records of score logs and of outputs of `rewardfleet score`.

    Args:
        folders: The logs and outputs.
        decode: Returns frames of the clip that a request names by path; None if it cannot.
        decode_reference: Likewise of a clip in the library of the judge `reference`.
        explain: Returns what is known of a record.

    Raises:
        ValueError: A folder is neither, or DuckDB is not installed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        decode: Callable[[Mapping[str, Any]], bytes | None] = lambda _: None,
        decode_reference: Callable[[Mapping[str, Any]], bytes | None] = lambda _: None,
        explain: Callable[[Mapping[str, Any]], Explanation] = lambda _: Explanation(),
    ) -> None:
        self._decode = decode
        self._decode_reference = decode_reference
        self.explain = explain
        self._folders = folders
        self._connection = duckdb.connect()
        self._lock = threading.Lock()  # one thread at a time uses the connection
        self._seen: object = None
        self.refresh()

    def refresh(self) -> None:
        """Read the records again if there are others."""
        with self._lock:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            columns = ", ".join(f"{source} AS {name}" for name, source in _COLUMNS.items())
            with open_log(self._folders) as log:
                self._connection.register(
                    "found", log.sql(f"SELECT {columns} FROM scores").to_arrow_table()
                )
                self._connection.execute(
                    "CREATE OR REPLACE TABLE items AS SELECT row_number() OVER (ORDER BY time, id) "
                    "AS n, *, CASE WHEN service = 'video' THEN concat(part, task) ELSE id END "
                    "AS subject, concat_ws(' ', uid, task, request, details) AS text FROM found"
                )
            self._seen = stamp

    def _stamp(self) -> object:
        files = [each for folder in self._folders for each in folder.glob("*.*")]
        return sorted(
            (path, stat.st_size, stat.st_mtime_ns) for path in files if (stat := _stat(path))
        )

    def page(self, chosen: Filter, start: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the records of a page, and how many there are in all."""
        where, parameters = chosen.where()
        direction = "DESC" if chosen.descending else "ASC"
        total = self._rows(f"SELECT count(*) AS total FROM items WHERE {where}", parameters)
        rows = self._rows(
            f"SELECT {_SHOWN} FROM items WHERE {where} "
            f"ORDER BY {chosen.sort} {direction} NULLS LAST, n LIMIT {PAGE} OFFSET ?",
            [*parameters, start],
        )
        return rows, total[0]["total"]

    def facets(self) -> dict[str, list[str]]:
        """Return the most frequent values of each column that is filtered by value."""
        return {
            name: [
                row["value"]
                for row in self._rows(
                    f"SELECT {name} AS value FROM items WHERE value IS NOT NULL "
                    f"GROUP BY value ORDER BY count(*) DESC, value LIMIT {_MOST_VALUES}",
                    [],
                )
            ]
            for name in FACETS
        }

    def record(self, number: int) -> dict[str, Any] | None:
        """Return all of a record; None if there is none of this number."""
        found = self._rows("SELECT * EXCLUDE (text) FROM items WHERE n = ?", [number])
        return found[0] if found else None

    def to_label(self, labeled: Collection[str], after: str) -> tuple[dict[str, Any] | None, int]:
        """Return a record that was drawn for labels and has none, and how many there are.

        They come by the digests of their requests, so those that are labeled first are a random
        part of them as well.

        Args:
            labeled: The ids that have a label.
            after: The id before the record's; after the last one comes the first.
        """
        where = "label_fraction IS NOT NULL AND id NOT IN (SELECT unnest(?::VARCHAR[]))"
        (total,) = self._rows(
            f"SELECT count(DISTINCT id) AS total FROM items WHERE {where}", [list(labeled)]
        )
        found = self._rows(
            f"SELECT n FROM items WHERE {where} ORDER BY id <= ?, id, n LIMIT 1",
            [list(labeled), after],
        )
        return self.record(found[0]["n"]) if found else None, total["total"]

    def frames(self, record: Mapping[str, Any]) -> bytes | None:
        """Return the frames of a clip as one JPEG; None if they are not to be had."""
        if not record["has_frames"]:
            request = json.loads(record["request"] or "{}")
            return self._decode(request) if "video_path" in request else None
        with open_log(self._folders) as log:
            query = "SELECT frames FROM scores WHERE source = ? AND id = ? AND frames IS NOT NULL"
            found = log.execute(query, [record["file"], record["id"]]).fetchone()
        return bytes(found[0]) if found else None

    def reference_frames(self, reference: Reference) -> bytes | None:
        """Return the frames of a reference as one JPEG; None if they are not to be had."""
        return self._decode_reference({"video_path": reference.file})

    def group(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the records of the group of an episode, that of the episode included."""
        if record["episodes"] is None:
            return []
        return self._rows(
            f"SELECT {_SHOWN}, episodes, components, request, details FROM items WHERE "
            "episodes = ? AND run IS NOT DISTINCT FROM ? AND step IS NOT DISTINCT FROM ? "
            # Batches that say no step have groups of the same names.
            f"AND (step IS NOT NULL OR call IS NOT DISTINCT FROM ?) ORDER BY n LIMIT {_MOST_MEMBERS}",
            [record["episodes"], record["run"], record["step"], record["call"]],
        )

    def related(self, record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Return other records of the same request, and of the same program or clip."""
        same = {
            "Same request": ("id = ?", [record["id"]]),
            "Same program or clip": ("part = ? AND id != ?", [record["part"], record["id"]]),
        }
        found = {
            title: self._rows(
                f"SELECT {_SHOWN}, components FROM items WHERE n != ? AND {where} "
                f"ORDER BY n LIMIT {PAGE}",
                [record["n"], *parameters],
            )
            for title, (where, parameters) in same.items()
        }
        return {title: rows for title, rows in found.items() if rows}

    def pairs(
        self, by: str, first: str, second: str, start: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the requests that two judges, or two logs, have scored: disagreements first.

        Args:
            by: `judge` or `source`.
            first: The judge, or the log, of `score` and `status`.
            second: That of `other_score` and `other_status`.
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

    def steps(self, chosen: Filter) -> list[dict[str, Any]]:
        """Return the last steps: how many scores there are in each tenth, and how many are missing.

        Scores outside of [0, 1] count in the first or the last tenth.
        """
        where, parameters = chosen.where()
        rows = self._rows(
            "SELECT step, CASE WHEN score IS NOT NULL "
            "THEN least(greatest(floor(score * 10), 0), 9)::INT END AS tenth, "
            f"count(*) AS items, sum(score) AS total FROM items WHERE step IS NOT NULL AND {where} "
            "GROUP BY ALL ORDER BY step, tenth",
            parameters,
        )
        steps: dict[int, dict[str, Any]] = {}
        for row in rows:
            step = steps.setdefault(
                row["step"], {"step": row["step"], "tenths": [0] * 10, "missing": 0, "total": 0.0}
            )
            if row["tenth"] is None:
                step["missing"] += row["items"]
            else:
                step["tenths"][row["tenth"]] += row["items"]
                step["total"] += row["total"]
        return list(steps.values())[-_MOST_STEPS:]

    def _rows(self, query: str, parameters: list[Any]) -> list[dict[str, Any]]:
        with self._lock:
            result = self._connection.execute(query, parameters)
            names = [each[0] for each in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # a segment was rewritten
        return None
