"""The story of a program's score."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from pydantic import ValidationError

from rewardfleet.lazy import Lazy
from rewardfleet.wire.code import DatasetTests
from rewardfleet.wire.errors import InvalidRequest

from .texts import Part, Table, Text, number, quoted

#: What decided a verdict.
_BY = {
    "service": "by the service, outside of the program's process",
    "jail": "where the program could tamper with it",
    "checker": "by the request's checker program",
}
#: The service's own reader, which needs no packages besides those of the client.
_READ_ROW = Lazy("rewardfleet_server.code.datasets.rows:read_row")


def story_of_program(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield what was extracted, which test failed first and how, and what decided the score."""
    verdicts = score.get("verdicts") or []
    is_judged = score.get("critique_valid") is not False
    if is_judged:
        yield from _extracted(request, score)
    else:
        yield f"Critique without an overall judgment: {quoted(request.get('critique') or '')}"
    counts = Counter(str(each["verdict"]) for each in verdicts)
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    yield f"Tests: {len(verdicts)} ({shown})"
    tests = _tests_of(request)
    cases = [*zip_longest(tests.get("cases") or (), verdicts)]
    told: Mapping[str, str | None] = {}
    for place, (case, verdict) in enumerate(cases, 1):
        if is_judged and verdict and verdict["verdict"] not in {"accepted", "left_out"}:
            by = verdict.get("verdict_by") or "service"
            by = _BY.get(by, f"by {by}")  # of a newer service
            yield f"Test {place} failed first: {verdict['verdict']}, decided {by}"
            told = _values(case, verdict)
            break
    yield Table("Tests", (_row(place, *each) for place, each in enumerate(cases, 1)), told)
    yield _threshold(request.get("mode"), tests, score)
    for suspicion in score.get("suspicions") or []:
        yield f"Suspicion: {quoted(suspicion)}"


def _extracted(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    if score.get("judgment"):
        yield f"The critique says that the original program is {score['judgment']}."
    code = score.get("code") or ""
    text = request.get("revision")
    where = "all of it" if text == code else "from a code block, or after the thinking"
    of = "" if text is None else f" of a text of {len(text):,} characters, {where}"
    yield f"Extracted: {len(code):,} characters{of}"
    yield Text("What the policy wrote", code if text is None else text, code.strip("\n"))


def _row(place: int, case: Any, verdict: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the row of a test, whose verdict is None if it was not run."""
    verdict = verdict or {}
    by = ", by the jail" if verdict.get("verdict_by") == "jail" else ""
    name = f"{verdict.get('verdict', '')}{by}"
    return {"test": str(place), "verdict": name, **_values(case, verdict)}


def _values(case: Any, verdict: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what a test gives to the program and expects, and what came of it.

    Args:
        case: The test as the request or its row has it; None if that is not known.
    """
    given = expected = None
    if isinstance(case, dict):
        given = _shown(case.get("stdin", case.get("args", "")))
        expected = _shown(case.get("stdout", case.get("expected", "")))
    elif case is not None:
        given = _shown(case)
    silent = None if isinstance(case, str) else ""  # an assert needs no output
    missing = verdict.get("missing_module")
    module = missing and f"missing module: {missing}"
    errors = [verdict.get("checker_message"), module, verdict.get("stderr")]
    if verdict.get("verdict") == "runtime_error" and not any(errors):
        errors = ["nothing: a signal ended the program, or it closed the stream"]
    times = [f"{verdict[name] / 1000:.3g} s" for name in ("cpu_ms", "wall_ms") if name in verdict]
    return {
        "input": given,
        "expected": expected,
        "actual output": verdict.get("returned") or verdict.get("stdout") or silent,
        "errors": "\n".join(filter(None, errors)) or None,
        "time": f"{times[0]} of CPU, {times[1]} in all" if len(times) == 2 else None,
    }


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tests_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tests of a request; those that a row of a data set stands for, if it has any."""
    tests: Mapping[str, Any] = request.get("tests") or {}
    if tests.get("kind") == "dataset":
        with suppress(InvalidRequest, ValidationError):
            tests = _READ_ROW(DatasetTests.model_validate(tests)).tests.model_dump()
    return tests


def _threshold(mode: str | None, tests: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    rate = score.get("pass_rate")
    passes = "no test was run" if rate is None else f"{number(100 * rate)}% of the tests pass"
    if mode == "all_pass":
        return f"Decided by: mode all_pass, in which all tests must pass; {passes}."
    rule = ""
    if tests.get("checker_program"):
        rule = " Outputs are compared by its checker program."
    elif tests.get("kind") == "stdio":
        rule = f" Outputs are compared by the checker {tests.get('checker', 'tokens')}."
    elif tests.get("tolerance"):
        rule = f" Numbers may differ by {number(tests['tolerance'])}."
    return f"Decided by: the share of tests that pass; {passes}.{rule}"
