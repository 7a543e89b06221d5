"""`rewardfleet report`: what happened in a run, from its score log."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rewardfleet.evaluation.metrics import share
from rewardfleet.score_log.labels import LabelLine
from rewardfleet.score_log.reading import Filters, open_log, query
from rewardfleet.services import SERVICES
from rewardfleet.wire.causes import SUCCESS_THRESHOLD
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.validation import read_lines

from .log import LOGS, filters
from .options import escaped, path_option, table

#: Rows of a table, parts of a run, and causes of a part that are shown.
_MAX_ROWS, _MAX_PARTS, _MAX_CAUSES = 10, 10, 4
#: Characters of a text from a service or a policy.
_MAX_SHOWN = 80

#: Seconds before the newest record in which false positives are counted, and labeled failures of a
#: task from which on it has a row.
_WEEK, _LEAST_FAILURES = 7 * 86_400, 10

#: What is needed of records, without the texts of requests, which may not fit into memory. A log
#: may keep a share of them only, so each has a weight.
_SELECTED = """
CREATE TEMP TABLE selected AS
SELECT service, run, step, id, time, status, score, score <= 0 AS is_zero, backend, cause, cached,
       timing_ms_total, timing_ms_queue, timing_ms_decode, timing_ms_backend,
       coalesce(sample_rate, 1) AS sample_rate, 1 / coalesce(sample_rate, 1) AS weight,
       label_fraction,
       CASE WHEN label_fraction IS NOT NULL THEN
           coalesce(TRY_CAST(json_extract_string(provenance, '$.calibration.threshold') AS DOUBLE),
                    {threshold})
       END AS threshold,
       CASE WHEN label_fraction IS NOT NULL THEN
           json_extract_string(request, '$.task_text')
       END AS task,
       md5(json_extract_string(request, CASE service {groups} END)) AS prompt,
       CASE WHEN score IS NULL THEN
           left(coalesce(error_detail, json_extract_string(details, '$.model_output')), 200)
       END AS reason,
       json_array_length(details, '$.verdicts') AS verdicts,
       len(list_filter(json_extract_string(details, '$.verdicts[*].verdict_by'),
                       lambda name: name = 'jail')) AS verdicts_by_jail,
       json_extract_string(details, '$.suspicions[*]') AS suspicions
FROM scores WHERE {condition}
"""

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
        _select(connection, Filters(**given))
        _add_labels(connection, labels)

        def log(sql: str, *values: object) -> list[tuple[Any, ...]]:
            return query(connection, sql, values)

        (count,) = log("SELECT count(*) FROM selected")[0]
        if not count:
            click.echo("no records", err=True)
            return 1
        for title, section in _SECTIONS.items():
            if text := "\n".join(section(log)):
                click.echo(f"\n{title}\n{text}" if title else text)
    return 0


def _select(connection: Any, given: Filters) -> None:
    condition, values = given.sql()
    groups = " ".join(f"WHEN '{name}' THEN '$.{each.group}'" for name, each in SERVICES.items())
    query(
        connection,
        _SELECTED.format(groups=groups, threshold=SUCCESS_THRESHOLD, condition=condition),
        values,
    )


def _add_labels(connection: Any, path: Path | None) -> None:
    """Make the table of the labels of a file: whether a person saw a success; null if unclear."""
    found = {} if path is None else dict(_read_labels(path))
    query(
        connection,
        "CREATE TEMP TABLE labels AS "
        "SELECT unnest(?::VARCHAR[]) AS id, unnest(?::BOOLEAN[]) AS success",
        [[*found], [*found.values()]],
    )


def _read_labels(path: Path) -> Iterator[tuple[str, bool | None]]:
    """Yield ids and labels, of which the last one counts, and name the lines that are none."""
    for number, line in read_lines(path, LabelLine):
        if isinstance(line, str):
            click.echo(f"{path}:{number}: no label, which is left out", err=True)
        else:
            yield line.id, line.success


def _overview(log: Log) -> Iterator[str]:
    rows = log(
        """
        SELECT service, sum(weight), avg(score), sum(weight) FILTER (is_zero),
               sum(weight) FILTER (status = 'abstained'), sum(weight) FILTER (status = 'error'),
               sum(weight) FILTER (cached)
        FROM selected GROUP BY service ORDER BY service
        """
    )
    (runs, first, last, rate) = log(
        "SELECT count(DISTINCT run), min(step), max(step), min(sample_rate) FROM selected"
    )[0]
    steps = "" if first is None else f", steps {first} to {last}"
    yield f"{sum(row[1] for row in rows):,.0f} records of {runs} runs{steps}"
    if rate is not None and rate < 1:
        yield f"The log keeps a share of the records, at least {rate:.0%}: numbers are estimates."
    head = ("service", "records", "mean score", "zeros", "abstained", "failed", "cached")
    shown = []
    for service, records, mean, *parts in rows:
        shares = (_share(each, records) for each in parts)
        shown_mean = "" if mean is None else f"{mean:.4g}"
        shown.append((service, f"{records:,.0f}", shown_mean, *shares))
    yield table(head, shown)


def _zeros(log: Log) -> Iterator[str]:
    """Yield a table of the zeros by service and part of the run, with their causes."""
    rows = log(
        """
        WITH range AS (SELECT min(step) AS low, max(step) AS high FROM selected),
        parts AS (
            SELECT service, cause, weight, is_zero,
                   CASE WHEN step IS NULL THEN NULL ELSE
                       (step - low) * least(?, high - low + 1) // (high - low + 1) END AS part, step
            FROM selected, range WHERE score IS NOT NULL
        ),
        causes AS (
            SELECT service, part, coalesce(cause, 'no cause') AS cause, sum(weight) AS zeros
            FROM parts WHERE is_zero GROUP BY ALL
        ),
        listed AS (
            SELECT service, part, list((cause, zeros) ORDER BY zeros DESC) AS causes
            FROM causes GROUP BY ALL
        ),
        totals AS (
            SELECT service, part, min(step) AS low, max(step) AS high, sum(weight) AS scores,
                   coalesce(sum(weight) FILTER (is_zero), 0) AS zeros
            FROM parts GROUP BY ALL
        )
        SELECT totals.service, low, high, scores, zeros, causes
        FROM totals LEFT JOIN listed ON totals.service = listed.service
             AND totals.part IS NOT DISTINCT FROM listed.part
        ORDER BY totals.service, low NULLS FIRST
        """,
        _MAX_PARTS,
    )
    head = ("service", "steps", "scores", "zeros", "causes of zeros")
    shown = []
    for service, low, high, scores, zeros, causes in rows:
        steps = "" if low is None else str(low) if low == high else f"{low} to {high}"
        counts = (causes or [])[:_MAX_CAUSES]
        named = ", ".join(f"{_text(name)} {_share(count, zeros)}" for name, count in counts)
        shown.append((service, steps, f"{scores:,.0f}", _share(zeros, scores), named))
    yield table(head, shown)


def _groups(log: Log) -> Iterator[str]:
    rows = log(
        """
        WITH groups AS (
            SELECT service, run, step, prompt, count(*) AS members, avg(weight) AS weight,
                   max(score) - min(score) AS spread, max(score) AS best
            FROM selected WHERE score IS NOT NULL AND prompt IS NOT NULL
            GROUP BY ALL HAVING members > 1
        )
        SELECT service, sum(weight), sum(weight) FILTER (spread < 1e-9),
               sum(weight) FILTER (spread < 1e-9 AND best <= 0)
        FROM groups GROUP BY service ORDER BY service
        """
    )
    if rows:
        head = ("service", "groups", "without variance", "of these all zero")
        shown = (
            (name, f"{n:,.0f}", _share(same, n), _share(zero, same)) for name, n, same, zero in rows
        )
        yield table(head, shown)


def _without_score(log: Log) -> Iterator[str]:
    rows = log(
        """
        SELECT service, backend, status, cause, sum(weight), coalesce(arg_max(reason, time), '')
        FROM selected WHERE score IS NULL GROUP BY ALL ORDER BY sum(weight) DESC LIMIT ?
        """,
        _MAX_ROWS,
    )
    if rows:
        head = ("service", "backend", "status", "cause", "records", "e.g.")
        shown = [
            (*(each or "" for each in row[:4]), f"{row[4]:,.0f}", _text(row[5])) for row in rows
        ]
        yield table(head, shown)


def _slowest(log: Log) -> Iterator[str]:
    rows = log(
        """
        SELECT service, id, timing_ms_total, timing_ms_queue, timing_ms_decode, timing_ms_backend,
               status, cause
        FROM selected WHERE timing_ms_total IS NOT NULL
        ORDER BY timing_ms_total DESC, id LIMIT ?
        """,
        _MAX_ROWS,
    )
    head = ("service", "id", "total s", "queue s", "decode s", "backend s", "status", "cause")
    yield table(
        head,
        [
            (row[0], row[1][:12], *(f"{(each or 0) / 1000:.3f}" for each in row[2:6]), row[6],
             row[7] or "")
            for row in rows
        ],
    )  # fmt: skip


def _tampering(log: Log) -> Iterator[str]:
    """Yield the share of verdicts that a program could have decided, and the suspicions."""
    verdicts, by_jail, records, suspected = log(
        """
        SELECT sum(weight * verdicts), sum(weight * verdicts_by_jail), sum(weight),
               sum(weight) FILTER (len(suspicions) > 0)
        FROM selected WHERE service = 'code' AND status = 'ok'
        """
    )[0]
    if not records:
        return
    yield f"{_share(by_jail, verdicts)} of {verdicts or 0:,.0f} verdicts are by `jail`"
    yield f"{_share(suspected, records)} of {records:,.0f} scores have suspicions"
    rows = log(
        """
        WITH each AS (
            SELECT unnest(suspicions) AS text, weight, id FROM selected WHERE service = 'code'
        )
        SELECT regexp_replace(text, '^test [0-9]+: ', '') AS kind, sum(weight), min(id)
        FROM each GROUP BY kind ORDER BY sum(weight) DESC, kind LIMIT ?
        """,
        _MAX_ROWS,
    )
    if rows:
        yield table(
            ("suspicion", "times", "e.g. id"),
            [(_text(row[0]), f"{row[1]:,.0f}", row[2][:12]) for row in rows],
        )


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
        ORDER BY backend, threshold, grouping(task) DESC, failures DESC LIMIT ?
        """,
        _WEEK,
        _LEAST_FAILURES,
        _MAX_ROWS,
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
        _text(judge), f"{threshold:.4g}", "all" if task is None else _text(task),
        f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}",
        *(f"{each:,}" for each in (drawn, labeled, unclear, failures, accepted)),
        _share(accepted, failures) if failures else "", f"{first:.1%} to {last:.1%}",
    )  # fmt: skip


#: The sections of a report by their titles; the first one has none.
_SECTIONS: dict[str, Callable[[Log], Iterator[str]]] = {
    "": _overview,
    "Zeros (scores of 0 or below) by cause and step": _zeros,
    "Groups: scores of a step with the same tests, correct answer, task or group": _groups,
    "Abstentions and failures": _without_score,
    "Slowest": _slowest,
    "False positives of the last seven days, of scores drawn for labels": _false_positives,
    "Verdicts that a program could have decided, and suspicions": _tampering,
}


def _text(text: str) -> str:
    return escaped(text, _MAX_SHOWN)


def _share(part: float | None, whole: float | None) -> str:
    return f"{(part or 0) / whole:.1%}" if whole else "0.0%"
