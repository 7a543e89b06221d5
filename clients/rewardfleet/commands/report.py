"""`rewardfleet report`: what happened in a run, from its score log."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from rewardfleet.evaluation.metrics import share
from rewardfleet.score_log.reading import Filters, open_log, query
from rewardfleet.score_log.record import LabelLine
from rewardfleet.services import SERVICES
from rewardfleet.story.texts import escaped
from rewardfleet.wire.causes import SUCCESS_THRESHOLD
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.validation import read_lines

from .log import LOGS, filters
from .options import path_option, table

#: Characters of a text from a service or a policy.
_MAX_SHOWN = 120
#: Formats of cells.
_COUNT, _SHARE, _SECONDS = ",.0f", ".1%", ".3f"

#: Seconds before the newest record in which false positives are counted, and labeled failures of a
#: task from which on it has a row.
_WEEK, _LEAST_FAILURES = 7 * 86_400, 10

#: What is needed of records, without the texts of requests, which may not fit into memory. A log
#: may keep a share of them only, so each has a weight.
_SELECTED = """
CREATE TEMP TABLE selected AS
SELECT * EXCLUDE (request, frames, components, provenance, details, metadata)
           REPLACE (coalesce(sample_rate, 1) AS sample_rate),
       1 / coalesce(sample_rate, 1) AS weight, reward <= 0 AS is_zero,
       CASE WHEN label_fraction IS NOT NULL THEN
           coalesce(TRY_CAST(provenance->>'$.calibration.threshold' AS DOUBLE), {threshold})
       END AS threshold,
       CASE WHEN label_fraction IS NOT NULL THEN request->>'$.task_text' END AS task,
       md5(json_extract_string(request, CASE service {groups} END)) AS prompt,
       CASE WHEN score IS NULL THEN
           left(coalesce(error_detail, details->>'$.model_output'), 200)
       END AS reason,
       json_array_length(details, '$.verdicts') AS verdicts,
       len(list_filter(details->>'$.verdicts[*].verdict_by',
                       lambda name: name = 'jail')) AS verdicts_by_jail,
       details->>'$.suspicions[*]' AS suspicions
FROM scores WHERE {condition}
"""

#: In SQL, 0 if there is no part or no whole.
_SHARES = "CREATE TEMP MACRO share(part, whole) AS coalesce(part / nullif(whole, 0), 0)"

Log = Callable[..., list[tuple[Any, ...]]]


@click.command(name="report")
@LOGS
@path_option(
    "--labels",
    "FILE",
    "Labels of `rewardfleet look`, for the false positives of the last seven days.",
)
@filters
def command(folders: Sequence[Path], labels: Path | None, **given: Any) -> int:
    """Report zeros by cause and step, groups without variance, failures, and the slowest items.

    LOG is the folder of a score log, or an output of `rewardfleet score`. Returns 1 if it has no
    record.
    """
    if labels is not None:
        require("eval", "--labels", "scipy")
    with open_log(folders) as connection:
        query(connection, _SHARES)
        condition, values = Filters(**given).sql()
        groups = " ".join(f"WHEN '{name}' THEN '$.{e.group}'" for name, e in SERVICES.items())
        sql = _SELECTED.format(groups=groups, threshold=SUCCESS_THRESHOLD, condition=condition)
        query(connection, sql, values)
        _add_labels(connection, labels)
        log = partial(query, connection)
        (count,) = log("SELECT count(*) FROM selected")[0]
        if not count:
            click.echo("no records", err=True)
            return 1
        for title, parts in _SECTIONS.items():
            if text := "\n".join(line for part in parts for line in part(log)):
                click.echo(f"\n{title}\n{text}" if title else text)
    return 0


def _add_labels(connection: Any, path: Path | None) -> None:
    """Make the table of the labels of a file: whether a person saw a success; null if unclear."""
    found = {}
    for number, line in read_lines(path, LabelLine) if path is not None else ():
        if isinstance(line, str):
            click.echo(f"{path}:{number}: no label, which is left out", err=True)
        else:
            found[line.id] = line.success  # the last one of an id counts
    query(
        connection,
        "CREATE TEMP TABLE labels AS "
        "SELECT unnest(?::VARCHAR[]) AS id, unnest(?::BOOLEAN[]) AS success",
        [[*found], [*found.values()]],
    )


@dataclass(frozen=True)
class _Table:
    """The rows of a query as a table; nothing if there are none."""

    columns: Mapping[str, str]  #: the formats of the numbers in them, by name
    sql: str

    def __call__(self, log: Log) -> Iterator[str]:
        rows = [[*map(_cell, row, self.columns.values())] for row in log(self.sql)]
        if rows:
            yield table([*self.columns], rows)


def _cell(value: Any, number_format: str = "") -> str:
    if value is None:
        return ""
    return escaped(value, _MAX_SHOWN) if isinstance(value, str) else format(value, number_format)


def _summary(log: Log) -> Iterator[str]:
    ((records, runs, first, last, rate),) = log(
        "SELECT sum(weight), count(DISTINCT run), min(step), max(step), min(sample_rate) "
        "FROM selected"
    )
    steps = "" if first is None else f", steps {first} to {last}"
    yield f"{records:,.0f} records of {runs} runs{steps}"
    if rate is not None and rate < 1:
        yield f"The log keeps a share of the records, at least {rate:.0%}: numbers are estimates."


def _tampering(log: Log) -> Iterator[str]:
    """Yield the shares of verdicts that a program could have decided, and of suspicions."""
    ((verdicts, by_jail, records, suspected),) = log(
        """
        SELECT coalesce(sum(weight * verdicts), 0) AS decided,
               share(sum(weight * verdicts_by_jail), decided),
               sum(weight), share(sum(weight) FILTER (len(suspicions) > 0), sum(weight))
        FROM selected WHERE service = 'code' AND status = 'ok'
        """
    )
    if records:
        yield f"{by_jail:.1%} of {verdicts:,.0f} verdicts are by `jail`"
        yield f"{suspected:.1%} of {records:,.0f} scores have suspicions"


def _false_positives(log: Log) -> Iterator[str]:
    """Yield how many failures were accepted of those that were drawn for people to label.

    Labels of other records do not count: people chose them, e.g. as they looked wrong.
    """
    rows = log(
        """
        WITH sampled AS (
            SELECT backend, threshold, task, label_fraction,
                   score >= threshold AS accepted, labels.id IS NOT NULL AS is_labeled, success
            FROM selected LEFT JOIN labels ON labels.id = selected.id
            WHERE label_fraction IS NOT NULL AND score IS NOT NULL
                  AND time > (SELECT max(time) FROM selected) - ?
        )
        SELECT backend, threshold, CASE WHEN grouping(task) = 0 THEN coalesce(task, '') END,
               min(label_fraction), max(label_fraction), count(*),
               count(*) FILTER (is_labeled) AS labeled,
               count(*) FILTER (is_labeled AND success IS NULL),
               count(*) FILTER (NOT success) AS failures,
               count(*) FILTER (NOT success AND accepted)
        FROM sampled GROUP BY GROUPING SETS ((backend, threshold), (backend, threshold, task))
        HAVING grouping(task) = 1 OR failures >= ?
        ORDER BY backend, threshold, grouping(task) DESC, failures DESC LIMIT 10
        """,
        [_WEEK, _LEAST_FAILURES],
    )
    if not rows:
        return
    if not any(row[6] for row in rows):
        drawn = sum(row[5] for row in rows)
        yield f"{drawn:,} scores were drawn: label them in `rewardfleet look`, and give --labels"
        return
    head = ("judge", "threshold", "task", "share", "drawn", "labeled", "unclear", "failures",
            "accepted", "rate", "95% interval")  # fmt: skip
    yield table(head, [_false_positive_row(*row) for row in rows])


def _false_positive_row(
    judge: str, threshold: float, task: str | None, low: float, high: float, *counts: int
) -> tuple[str, ...]:
    drawn, labeled, unclear, failures, accepted = counts
    figure = share(accepted, failures)
    first, last = figure["interval"] or (0, 1)
    return (
        _cell(judge), f"{threshold:.4g}", "all" if task is None else _cell(task),
        f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}",
        *(f"{each:,}" for each in (drawn, labeled, unclear, failures, accepted)),
        _cell(figure["value"], _SHARE), f"{first:.1%} to {last:.1%}",
    )  # fmt: skip


_OVERVIEW = _Table(
    {"service": "", "records": _COUNT, "mean reward": ".4g",
     "zeros": _SHARE, "abstained": _SHARE, "failed": _SHARE, "cached": _SHARE},
    """
    SELECT service, sum(weight), avg(reward), share(sum(weight) FILTER (is_zero), sum(weight)),
           share(sum(weight) FILTER (status = 'abstained'), sum(weight)),
           share(sum(weight) FILTER (status = 'error'), sum(weight)),
           share(sum(weight) FILTER (cached), sum(weight))
    FROM selected GROUP BY service ORDER BY service
    """,
)  # fmt: skip
#: The zeros by service and tenth of the run, with their most frequent causes.
_ZEROS = _Table(
    {"service": "", "steps": "", "rewards": _COUNT, "zeros": _SHARE, "causes of zeros": ""},
    """
    WITH range AS (SELECT min(step) AS low, max(step) AS high FROM selected),
    parts AS (
        SELECT *, (step - low) * least(10, high - low + 1) // (high - low + 1) AS part
        FROM selected, range WHERE score IS NOT NULL
    ),
    causes AS (
        SELECT service, part, coalesce(cause, 'no cause') AS cause, min(step) AS low,
               max(step) AS high, sum(weight) AS scores, sum(weight) FILTER (is_zero) AS zeros,
               sum(zeros) OVER (PARTITION BY service, part) AS of_part
        FROM parts GROUP BY service, part, coalesce(cause, 'no cause')
    )
    SELECT service, concat_ws(' to ', min(low), nullif(max(high), min(low))),
           sum(scores), share(sum(zeros), sum(scores)),
           string_agg(printf('%s %.1f%%', cause, 100 * zeros / of_part), ', ' ORDER BY zeros DESC)
    FROM causes GROUP BY service, part ORDER BY service, min(low) NULLS FIRST
    """,
)
_GROUPS = _Table(
    {"service": "", "groups": _COUNT, "without variance": _SHARE, "of these all zero": _SHARE},
    """
    WITH groups AS (
        SELECT service, run, step, prompt, count(*) AS members, avg(weight) AS weight,
               max(reward) - min(reward) < 1e-9 AS is_equal, max(reward) AS best
        FROM selected WHERE score IS NOT NULL AND prompt IS NOT NULL
        GROUP BY ALL HAVING members > 1
    )
    SELECT service, sum(weight), share(sum(weight) FILTER (is_equal), sum(weight)),
           share(sum(weight) FILTER (is_equal AND best <= 0), sum(weight) FILTER (is_equal))
    FROM groups GROUP BY service ORDER BY service
    """,
)
_WITHOUT_SCORE = _Table(
    {"service": "", "backend": "", "status": "", "cause": "", "records": _COUNT, "e.g.": ""},
    """
    SELECT service, backend, status, cause, sum(weight), arg_max(reason, time)
    FROM selected WHERE score IS NULL GROUP BY ALL ORDER BY sum(weight) DESC LIMIT 10
    """,
)
_SLOWEST = _Table(
    {"service": "", "id": "", "total s": _SECONDS, "queue s": _SECONDS, "decode s": _SECONDS,
     "backend s": _SECONDS, "status": "", "cause": ""},
    """
    SELECT service, left(id, 12), timing_ms_total / 1000, timing_ms_queue / 1000,
           timing_ms_decode / 1000, timing_ms_backend / 1000, status, cause
    FROM selected WHERE timing_ms_total IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY service, id ORDER BY timing_ms_total DESC) = 1
    ORDER BY timing_ms_total DESC, id LIMIT 10
    """,
)  # fmt: skip
_SUSPICIONS = _Table(
    {"suspicion": "", "times": _COUNT, "e.g. id": ""},
    """
    WITH each AS (
        SELECT unnest(suspicions) AS text, weight, id FROM selected WHERE service = 'code'
    )
    SELECT regexp_replace(text, '^test [0-9]+: ', '') AS kind, sum(weight), left(min(id), 12)
    FROM each GROUP BY kind ORDER BY sum(weight) DESC, kind LIMIT 10
    """,
)
#: The sections of a report by their titles; the first one has none.
_SECTIONS: dict[str, tuple[Callable[[Log], Iterator[str]], ...]] = {
    "": (_summary, _OVERVIEW),
    "Zeros (rewards of 0 or below) by cause and step": (_ZEROS,),
    "Groups: rewards of a step with the same tests, correct answer, task or group": (_GROUPS,),
    "Abstentions and failures": (_WITHOUT_SCORE,),
    "Slowest": (_SLOWEST,),
    "False positives of the last seven days, of scores drawn for labels": (_false_positives,),
    "Verdicts that a program could have decided, and suspicions": (_tampering, _SUSPICIONS),
}
