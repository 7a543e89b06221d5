"""What can be wrong with a row, and how that is seen in the scores of answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rewardfleet.score_log.record import Record
from rewardfleet.story.texts import escaped

#: By the id of a finding: what it means, and what to change in the row.
FINDINGS: Mapping[str, Mapping[str, str]] = json.loads(
    (Path(__file__).parent / "findings.json").read_text(encoding="utf-8")
)
#: Answers that no row may pay, the strongest first: of several, one is reported.
_UNPAID = ("anything-passes", "empty-passes", "constant-passes", "echo-passes",
           "first-output-passes", "mutant-passes")  # fmt: skip
#: What the service says of rows that it refuses, and the findings that these are.
_REFUSALS = {
    "prove nothing": "no-check",
    "it has no check": "no-check",
    "checker program accepts": "checker-accepts-all",
}
_MAX_SHOWN = 300  #: characters of what was seen


class Tried(NamedTuple):
    """An answer that is tried on a row."""

    #: The finding that it is if it is paid; or `solution` for what must be paid, `again` for the
    #: same in a form that no cache knows, and `twin` for the solution of a row with the problem.
    kind: str
    text: str
    note: str = ""  #: what it does; of a solution, that it was written from the reference


class Plan(NamedTuple):
    """What is tried on a row."""

    tried: list[Tried]
    limit_s: float | None = None  #: the time limit of programs
    conflict: str = ""  #: why no program can pass
    name: str = ""
    place: str = ""
    twin: str = ""  #: the name of an earlier row with the same problem


class Finding(NamedTuple):
    """What is wrong with a row, and what was seen; see `FINDINGS`."""

    id: str
    detail: str
    answer: str = ""  #: what was paid, or failed; empty if the row alone is wrong


def findings_of(plan: Plan, records: Sequence[Record]) -> Iterator[Finding]:
    """Yield what is wrong with a row, from the scores of what was tried, in the same order."""
    scored = [*zip(plan.tried, records, strict=True)]
    kinds = {kind: [each for each in scored if each[0].kind == kind] for kind, *_ in plan.tried}
    if plan.twin and "twin" not in kinds:
        yield Finding("duplicate", f"the problem is that of row {plan.twin}")
    if refusal := next((r["error_detail"] for r in records if r["error_kind"]), ""):
        known = (name for said, name in _REFUSALS.items() if said in refusal)
        yield Finding(next(known, "invalid"), escaped(refusal, _MAX_SHOWN))
        return
    if left_out := next((r["left_out"] for r in records if r.get("left_out")), None):
        yield Finding("no-check", "; ".join(left_out))
    if "solution" in kinds:
        yield from _of_solutions(plan, kinds)
    elif plan.conflict:
        yield Finding("impossible", plan.conflict)
    for name in _UNPAID:
        if paid := [tried for tried, record in kinds.get(name, []) if _is_full(record)]:
            count = f"{len(paid)} of {len(kinds[name])}: " if name == "mutant-passes" else ""
            yield Finding(name, f"{count}{paid[0].note}", paid[0].text)
            return


def _of_solutions(plan: Plan, kinds: Mapping[str, list[tuple[Tried, Record]]]) -> Iterator[Finding]:
    own, record = kinds["solution"][0]
    is_right = any(_is_full(each) for _, each in kinds["solution"])
    if not is_right:
        name = "impossible" if plan.conflict else "unreachable" if own.note else "solution-fails"
        yield Finding(name, plan.conflict or escaped(_why(record), _MAX_SHOWN), own.text)
    for _, again in kinds.get("again", []):
        if _seen(again) != _seen(record):
            yield Finding("flaky", escaped(f"first: {_seen(record)}", _MAX_SHOWN), own.text)
    for tried, twin in kinds.get("twin", []):
        # Another failure may be due to another name of the function.
        is_wrong = _first_failed(twin).get("verdict") in {None, "wrong_answer"}
        is_other = is_wrong and _is_full(record) and not _is_full(twin)
        detail, text = f"the problem is that of row {plan.twin}", tried.text if is_other else ""
        yield Finding("contradiction" if is_other else "duplicate", detail, text)
    times = (each.get("cpu_ms", 0) / 1000 for each in record.get("verdicts") or ())
    slowest = max(times, default=0)
    if is_right and plan.limit_s and slowest > plan.limit_s / 2:
        yield Finding("near-limit", f"{slowest:.2f} s of CPU time of {plan.limit_s:g} s", own.text)


def _is_full(record: Record) -> bool:
    """Return whether there is nothing to explain, or all tests passed."""
    return record["score"] == 1.0 if record.get("verdicts") else not record["cause"]


def _seen(record: Record) -> list[Any]:
    """Return what must be the same each time."""
    names = ("verdict", "stdout", "returned")
    return [[*map(each.get, names)] for each in record.get("verdicts") or ()]


def _first_failed(record: Record) -> Mapping[str, Any]:
    """Return the verdict of the first test that failed, with its `number`; empty if none did."""
    for number, verdict in enumerate(record.get("verdicts") or (), 1):
        if verdict["verdict"] not in {"accepted", "left_out"}:
            return {**verdict, "number": number}
    return {}


def _why(record: Record) -> str:
    """Return why an answer is not paid in full."""
    if not (failed := _first_failed(record)):
        return str(record["cause"])
    names = ("checker_message", "returned", "stderr", "stdout")
    said = next(filter(None, map(failed.get, names)), "")
    return f"test {failed['number']}: {failed['verdict']}: {''.join(said.splitlines()[-1:])}"
