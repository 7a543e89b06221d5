"""What can be wrong with a row, and how that is seen in the scores of its probes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewardfleet.bulk.records import Record
from rewardfleet.story.texts import escaped
from rewardfleet.wire.causes import Cause
from rewardfleet.wire.errors import ErrorKind

from .probes import Plan, Probe

#: Characters of a message that a finding has.
_MAX_SHOWN = 300
#: The share of its time limit from which on a solution is slow.
_NEAR = 0.5


class FindingId(Cause):
    """What is wrong with a row, and what to change in it."""

    INVALID = (
        "invalid",
        "The service refuses the row, so it has no reward.",
        "Correct what the message names, or remove the row.",
    )
    NO_CHECK = (
        "no-check",
        "Tests have no assertion, or pass without a program, so they do not count.",
        "Give these tests an assertion about what the program does.",
    )
    IMPOSSIBLE = (
        "impossible",
        "One input has two expected outputs, so no program can pass.",
        "Remove the wrong one of these tests.",
    )
    SOLUTION_FAILS = (
        "solution-fails",
        "The row's own solution fails its tests.",
        "Correct the test or the solution, or give a checker that accepts all right outputs.",
    )
    UNREACHABLE = (
        "unreachable",
        "The reference itself, written as an answer, does not get the full score in any format.",
        "Write the reference in a form that answers can have, or give another `form` or option.",
    )
    FLAKY = (
        "flaky",
        "The row's own solution gives another verdict or output the second time.",
        "Let neither the tests nor the solution depend on the clock, on chance, or on an order.",
    )
    NEAR_LIMIT = (
        "near-limit",
        "The row's own solution takes more than half of the time limit.",
        "Raise the time limit: on a slower machine, right programs would fail.",
    )
    ANYTHING_PASSES = (
        "anything-passes",
        "An answer that says nothing is paid in full.",
        "Let the tests compare with the right answer. Where no call is right, check the text, too.",
    )
    CHECKER_ACCEPTS_ALL = (
        "checker-accepts-all",
        "The row's checker accepts an empty output, or words that are no answer.",
        "Let the checker reject by an exit status other than 0.",
    )
    EMPTY_PASSES = (
        "empty-passes",
        "A program that does nothing passes.",
        "Add tests of which the expected output is not empty.",
    )
    CONSTANT_PASSES = (
        "constant-passes",
        "A program that always gives the same value passes.",
        "Add tests with other expected values.",
    )
    ECHO_PASSES = (
        "echo-passes",
        "A program that gives back its input passes.",
        "Add tests of which the output differs from the input.",
    )
    FIRST_OUTPUT_PASSES = (
        "first-output-passes",
        "A program that always gives the expected output of the first test passes.",
        "Add tests: there is only one, or the others accept its output as well.",
    )
    MUTANT_PASSES = (
        "mutant-passes",
        "The row's own solution with one change passes: no test notices it.",
        "Add a test in which the changed place matters, unless the change has no effect.",
    )
    CONTRADICTION = (
        "contradiction",
        "Another row has the same problem, and its right answer is wrong here.",
        "Remove the row with the wrong truth, or make the problems differ.",
    )
    DUPLICATE = (
        "duplicate",
        "Another row has the same problem.",
        "Remove one of them.",
    )


class Finding(NamedTuple):
    """What is wrong with a row."""

    id: FindingId
    row: str  #: its name
    place: str  #: where it is in the input
    answer: str  #: what was paid, or failed; empty if the row alone is wrong
    detail: str  #: what was seen, in a few words

    def fields(self) -> dict[str, str]:
        """Return it as JSON, with what to change."""
        return {**self._asdict(), "change": self.id.remedy}


#: What the service says of rows that it refuses, and the findings that these are.
_REFUSALS = {
    "prove nothing": FindingId.NO_CHECK,
    "it has no check": FindingId.NO_CHECK,
    "checker program accepts": FindingId.CHECKER_ACCEPTS_ALL,
}
#: Probes that no row may pay, the strongest first: of several, one is reported.
_UNPAID = {
    Probe.ANYTHING: FindingId.ANYTHING_PASSES,
    Probe.EMPTY: FindingId.EMPTY_PASSES,
    Probe.CONSTANT: FindingId.CONSTANT_PASSES,
    Probe.ECHO: FindingId.ECHO_PASSES,
    Probe.FIRST_OUTPUT: FindingId.FIRST_OUTPUT_PASSES,
    Probe.MUTANT: FindingId.MUTANT_PASSES,
}


def failures_of(records: Sequence[Record]) -> list[Record]:
    """Return the records of probes that could not be scored, which is not the row's fault."""
    return [r for r in records if r["error_kind"] not in (None, ErrorKind.INVALID)]


def findings_of(plan: Plan, records: Sequence[Record]) -> Iterator[Finding]:
    """Yield what is wrong with a row.

    Args:
        plan: Its probes.
        records: Their scores, in the same order.
    """

    def found(name: FindingId, detail: str, answer: str = "") -> Finding:
        return Finding(name, plan.name, plan.place, answer, escaped(detail, _MAX_SHOWN))

    scored = [*zip(plan.probes, records, strict=True)]
    refused = next((r["error_detail"] for r in records if r["error_kind"] == "invalid"), None)
    if refused is not None:
        known = (name for said, name in _REFUSALS.items() if said in refused)
        yield found(next(known, FindingId.INVALID), refused)
    if plan.twin and not any(each.kind is Probe.TWIN for each in plan.probes):
        yield found(FindingId.DUPLICATE, f"the problem is that of row {plan.twin}")
    if refused is not None:
        return
    if left_out := next((r["left_out"] for r in records if r.get("left_out")), None):
        yield found(FindingId.NO_CHECK, "; ".join(left_out))
    own = [(probe, r) for probe, r in scored if probe.kind is Probe.SOLUTION]
    is_right = any(_is_full(r) for _, r in own)
    if plan.conflict and not is_right:
        yield found(FindingId.IMPOSSIBLE, plan.conflict)
    elif own and not is_right:
        name = FindingId.UNREACHABLE if own[0][0].note else FindingId.SOLUTION_FAILS
        yield found(name, _why(own[0][1]), own[0][0].text)
    for probe, record in scored:
        if probe.kind is Probe.AGAIN and _seen(record) != _seen(own[0][1]):
            yield found(FindingId.FLAKY, _difference(own[0][1], record), own[0][0].text)
        if probe.kind is Probe.TWIN:
            first = _first_failed(record)
            # Otherwise the function may have another name there.
            is_wrong = first is None or first[1]["verdict"] == "wrong_answer"
            same = _is_full(record) or not _is_full(own[0][1]) or not is_wrong
            name = FindingId.DUPLICATE if same else FindingId.CONTRADICTION
            yield found(name, f"the problem is that of row {plan.twin}", "" if same else probe.text)
    slowest = max((v["cpu_ms"] for _, r in own for v in r.get("verdicts") or ()), default=0)
    if is_right and plan.limit_s and slowest > _NEAR * 1000 * plan.limit_s:
        detail = f"{slowest / 1000:.2f} s of CPU time of {plan.limit_s:g} s"
        yield found(FindingId.NEAR_LIMIT, detail, own[0][0].text)
    for kind, name in _UNPAID.items():
        tried = [(probe, r) for probe, r in scored if probe.kind is kind]
        if paid := [probe for probe, r in tried if _is_full(r)]:
            count = f"{len(paid)} of {len(tried)}: " if kind is Probe.MUTANT else ""
            yield found(name, f"{count}{paid[0].note}", paid[0].text)
            return


def _is_full(record: Record) -> bool:
    """Return whether there is nothing to explain: the score is at its maximum."""
    is_code = record.get("pass_rate") is not None
    return record["score"] == 1.0 if is_code else record["status"] == "ok" and not record["cause"]


def _seen(record: Record) -> list[Any]:
    """Return what must be the same each time."""
    return [_outcome(each) for each in record.get("verdicts") or ()]


def _outcome(verdict: Mapping[str, Any]) -> tuple[Any, ...]:
    return verdict["verdict"], verdict["stdout"], verdict["returned"]


def _first_failed(record: Record) -> tuple[int, Mapping[str, Any]] | None:
    """Return the number and the verdict of the first test that failed; None if none did."""
    passed = {"accepted", "left_out"}
    verdicts = enumerate(record.get("verdicts") or (), 1)
    return next((each for each in verdicts if each[1]["verdict"] not in passed), None)


def _why(record: Record) -> str:
    """Return why an answer does not have the full score."""
    if (first := _first_failed(record)) is None:
        return f"{record['cause']}"
    number, verdict = first
    said = verdict["checker_message"] or verdict["returned"] or verdict["stderr"].strip()
    last = said.splitlines()[-1] if said else verdict["stdout"].strip()
    return f"test {number}: {verdict['verdict']}{last and f': {last}'}"


def _difference(first: Record, second: Record) -> str:
    pairs = zip(_seen(first), _seen(second), strict=False)
    number, pair = next(((n, p) for n, p in enumerate(pairs, 1) if p[0] != p[1]), (0, ()))
    texts = [next((t for t in reversed(each) if t), "") for each in pair]
    return f"test {number}: first {texts[0]!r}, then {texts[1]!r}" if pair else "other tests ran"
