"""Rows with the answers that are tried on them, and what was found."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardfleet.bulk.output import read_records
from rewardfleet.bulk.requests import Columns, Item, RequestBuilder
from rewardfleet.bulk.rows import Row, open_sources
from rewardfleet.lazy import Lazy
from rewardfleet.wire.answers import AnswersRequest
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import ToolsRequest
from rewardfleet.wire.truth import choices_of, given, plain, truth_text

from .findings import FINDINGS, Plan, Tried, findings_of

#: The column of a row that has the answers.
_COLUMN = "answers_of_lint"
#: Columns with the name of a row, of which the first one counts; and with its problem.
_NAMES = ("task_id", "id", "problem_id", "question_id", "unique_id", "uid", "name")
_PROBLEMS = (
    "prompt", "question", "problem", "text", "content", "description", "instruction", "query",
    "question_content", "problem_description", "input", "starter_code", "tools", "choices",
)  # fmt: skip
#: Columns with what a policy wrote, on which the score of an answer would depend.
_OF_A_POLICY = {"critique", "original_program", "original_passed"}
_NOTHING = Tried("anything-passes", "I cannot say.", "it says nothing")
#: The formats of a final answer.
_FINAL = (r"So it is \boxed{{{}}}.", "{}", "The final answer is {}.")
#: Rows by which the service is found.
_FIRST_ROWS = 20


def _final_answers(request: AnswersRequest, _: Mapping[str, Any]) -> Plan:
    """Return the reference in several formats; as it is, if it is a solution."""
    reference = request.references[0]
    if reference is None:  # a schema alone
        return Plan([_NOTHING])
    text = reference if isinstance(reference, str) else json.dumps(reference)
    if r"\boxed" in text or "####" in text:
        return Plan([Tried("solution", text), _NOTHING])
    return Plan([*(Tried("solution", e.format(text), "the reference") for e in _FINAL), _NOTHING])


def _tool_answers(request: ToolsRequest, _: Mapping[str, Any]) -> Plan:
    """Return the right calls in several formats.

    Raises:
        InvalidRequest: The truth cannot be read.
    """
    try:
        text = truth_text(request.ground_truth)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    texts = _written(json.loads(text)) if text.startswith("[") else [text]
    return Plan([*(Tried("solution", each, "the reference") for each in texts), _NOTHING])


def _written(calls: list[Any]) -> Iterator[str]:
    lines = [json.dumps(_call(each), ensure_ascii=False) for each in calls]
    if lines:
        together = "\n".join(lines)
        yield f"<think>I call it.</think>\n<tool_call>\n{together}\n</tool_call>"
        yield "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in lines)


def _call(call: Any) -> dict[str, Any]:
    """Return a call; of BFCL's allowed values, the first one."""
    found = choices_of(call)
    arguments = call["parameters"] if found is None else _chosen(found["parameters"])
    return {"name": (found or call)["name"], "arguments": arguments}


def _chosen(value: Any) -> Any:
    """Return a value with the first allowed value of each argument in it that must be there."""
    if isinstance(value, list):
        return [_chosen(each) for each in value]
    if not isinstance(value, dict):
        return value
    allowed = {name: v if isinstance(v, list) else [v] for name, v in value.items()}
    return {name: _chosen(v[0]) for name, v in allowed.items() if v and "" not in v}


#: By service, what is tried on a row, from its request and its columns.
_ANSWERS: dict[str, Callable[..., Plan]] = {
    "code": Lazy("rewardfleet.lint.code:answers"),
    "tools": _tool_answers,
    "answers": _final_answers,
}
SERVICES = tuple(_ANSWERS)


class Lint:
    """Rows, and what is tried on them.

    Args:
        columns: Where the truth is, and the name of a row.
        service: The service that scores them; None for the first that can read one of them.

    Raises:
        ValueError: None can.
    """

    def __init__(self, paths: Sequence[Path], columns: Columns, service: str | None) -> None:
        self._sources = open_sources(paths)
        self._id_column = columns.id_column
        self.scored = replace(columns, completion_column=_COLUMN, id_column=None)
        first = [*itertools.islice(self._rows(), _FIRST_ROWS)]
        can_read = (name for name in SERVICES if any(self._plan(name, each) for each in first))
        self.service = service or next(can_read, "")
        if not self.service:
            names = ", ".join(SERVICES)
            raise ValueError(f"no service can read the first rows; --service: give one of {names}")

    def with_answers(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows with a column that has what is tried on them."""
        return (row for _, row in self._planned(rows))

    def report(self, scores: Path, ignored: dict[tuple[str, str], str]) -> dict[str, Any]:
        """Return the findings, and how many there are.

        Args:
            scores: The output of `rewardfleet score` with the rows of `with_answers`.
            ignored: Why findings are not counted, by id and row.
        """
        records = read_records(scores)
        totals, findings, left = Counter[str](), list[dict[str, Any]](), dict(ignored)
        for plan, _ in self._planned(self._rows()):
            scored = [*itertools.islice(records, len(plan.tried))]
            is_checked = all(each["error_kind"] in {None, "invalid"} for each in scored)
            found = [*findings_of(plan, scored)] if is_checked else []
            reasons = [left.pop((each.id, plan.name), None) for each in found]
            totals += {"rows": 1, "answers": len(scored), "not_checked": not is_checked,
                       "rows_with_findings": None in reasons}  # fmt: skip
            for each, reason in zip(found, reasons, strict=True):
                place = {"row": plan.name, "place": plan.place, "ignored": reason}
                findings.append({**each._asdict(), **FINDINGS[each.id], **place})
        counts = Counter(each["id"] for each in findings if each["ignored"] is None)
        return {
            "service": self.service,
            **{n: totals[n] for n in ("rows", "answers", "not_checked", "rows_with_findings")},
            "counted": counts.total(),
            "counts": {name: counts[name] for name in FINDINGS if counts[name]},
            "ignored_but_not_found": [":".join(each) for each in left],
            "findings": findings,
        }

    def _rows(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(each.rows() for each in self._sources)

    def _planned(self, rows: Iterable[Row]) -> Iterator[tuple[Plan, Row]]:
        seen: dict[bytes, tuple[str, str]] = {}  # the first row with a problem, and its solution
        for number, row in enumerate(rows):
            columns = (self._id_column,) if self._id_column else _NAMES
            names = (v for v in given(row.fields, columns).values() if isinstance(v, str | int))
            name = str(next(names, number))
            # If it cannot be read, the service says why.
            plan = self._plan(self.service, row) or Plan([Tried("anything-passes", "")])
            tried, twin = plan.tried, ""
            if problem := _problem(row):
                own = next((each.text for each in tried if each.kind == "solution"), "")
                twin, answer = seen.setdefault(problem, (name, own))
                twin = "" if twin == name else twin
                tried = [*tried, Tried("twin", answer)] if twin and answer and own else tried
            plan = plan._replace(tried=tried, name=name, place=row.place, twin=twin)
            yield plan, _with(row, [each.text for each in tried])

    def _plan(self, service: str, row: Row) -> Plan | None:
        try:
            builder, probed = RequestBuilder(service, self.scored), _with(row, "")
            return _ANSWERS[service](builder.build(Item(0, probed, error=row.error)), row.fields)
        except InvalidRequest:
            return None


def _with(row: Row, answers: Any) -> Row:
    fields = {name: each for name, each in row.fields.items() if name not in _OF_A_POLICY}
    return row._replace(fields={**fields, _COLUMN: answers})


def _problem(row: Row) -> bytes:
    """Return the digest of a row's problem; empty if it has none."""
    found = {k: v for k, v in given(row.fields, _PROBLEMS).items() if len(str(v)) > 1}
    text = " ".join(json.dumps(plain(found), default=str).split())
    return hashlib.sha256(text.encode()).digest()[:16] if found else b""
