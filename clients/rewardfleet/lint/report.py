"""The findings of a data set, and how many there are."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rewardfleet.bulk.records import Record
from rewardfleet.bulk.rows import Row

from .findings import FindingId, failures_of, findings_of
from .probes import Planner

#: Known findings, by id and row, and why they may stay.
Ignored = dict[tuple[str, str], str]


@dataclass
class Report:
    """What lint.json has."""

    service: str
    rows: int = 0
    answers: int = 0  #: that were tried
    not_checked: int = 0  #: rows of which an answer could not be scored
    rows_with_findings: int = 0  #: without ignored ones
    counts: dict[str, int] = field(default_factory=dict)  #: of findings that are not ignored, by id
    ignored_but_not_found: list[str] = field(default_factory=list)
    #: The fields of a `Finding`, what to `change`, and why it is `ignored`, null if it is not.
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def counted(self) -> list[dict[str, Any]]:
        """The findings that are not ignored."""
        return [each for each in self.findings if each["ignored"] is None]

    def is_above(self, limit: float, *, is_share: bool) -> bool:
        """Return whether there are more findings, or a larger share of rows with one in percent."""
        if is_share:
            return 100 * self.rows_with_findings > limit * self.rows
        return len(self.counted) > limit


def report_of(
    planner: Planner, rows: Iterable[Row], records: Iterator[Record], ignored: Ignored
) -> Report:
    """Return the findings in the scores of the answers that were tried on rows, in their order."""
    report = Report(planner.service)
    left = dict(ignored)
    for plan, _ in planner.plans(rows):
        scored = [*itertools.islice(records, len(plan.probes))]
        report.rows += 1
        report.answers += len(scored)
        if failures_of(scored):
            report.not_checked += 1
            continue
        found = [
            {**each.fields(), "ignored": left.pop((each.id, each.row), None)}
            for each in findings_of(plan, scored)
        ]
        report.findings += found
        report.rows_with_findings += any(each["ignored"] is None for each in found)
    counts = Counter(each["id"] for each in report.counted)
    report.counts = {each: counts[each] for each in FindingId if counts[each]}
    report.ignored_but_not_found = [":".join(each) for each in left]
    return report
