"""The story of a program's score."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rewardfleet.wire.truth import parsed

from .texts import block, number, quoted

#: What decided a verdict.
_BY = {
    "service": "by the service, outside of the program's process",
    "jail": "where the program could tamper with it",
    "checker": "by the request's checker program",
}
#: How deep a ground truth is in a row, at most.
_MAX_DEPTH = 5


def story_of_program(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was extracted, which test failed first and how, and what decided the score."""
    yield from _extracted(request, score)
    verdicts = score.get("verdicts") or []
    counts = Counter(str(each["verdict"]) for each in verdicts)
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    yield f"Tests: {len(verdicts)} ({shown})"
    failed = next(
        (n for n, each in enumerate(verdicts) if each["verdict"] not in {"accepted", "left_out"}),
        None,
    )
    if failed is not None and score.get("critique_valid") is not False:
        yield from _failure(request, verdicts, failed)
    yield _threshold(request, score)
    for suspicion in score.get("suspicions") or []:
        yield f"Suspicion: {quoted(suspicion)}"


def _extracted(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[str]:
    if score.get("critique_valid") is False:
        yield f"Critique without an overall judgment: {quoted(request.get('critique') or '')}"
        return
    if score.get("judgment"):
        yield f"The critique says that the original program is {score['judgment']}."
    code = score.get("code") or ""
    text = request.get("revision")
    where = "all of it" if text == code else "from a code block, or after the thinking"
    of = "" if text is None else f" of a text of {len(text):,} characters, {where}"
    yield f"Extracted: {len(code):,} characters{of}"
    yield from block(code.strip("\n"))


def _failure(
    request: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]], index: int
) -> Iterator[str]:
    verdict = verdicts[index]
    by = verdict.get("verdict_by") or "service"
    by = _BY.get(by, f"by {by}")  # of a newer service
    yield f"Test {index + 1} failed first: {verdict['verdict']}, decided {by}"
    tests = request.get("tests") or {}
    case = _case(tests, index, len(verdicts))
    yield from _shown_case(case)
    if verdict.get("returned"):
        yield f"  actual value:    {quoted(verdict['returned'])}"
    elif verdict.get("stdout") or not isinstance(case, str):
        yield f"  actual output:   {quoted(verdict.get('stdout') or '')}"
    if verdict.get("checker_message"):
        yield f"  checker:         {quoted(verdict['checker_message'])}"
    if verdict.get("missing_module"):
        yield f"  missing module:  {quoted(verdict['missing_module'])}"
    times = [f"{verdict[name] / 1000:.3g} s" for name in ("cpu_ms", "wall_ms") if name in verdict]
    if len(times) == 2:
        yield f"  time:            {times[0]} of CPU, {times[1]} in all"
    if verdict.get("stderr"):
        yield "  standard error:"
        yield from (f"  {line}" for line in block(verdict["stderr"].strip("\n")))
    elif verdict["verdict"] == "runtime_error":
        yield "  standard error:  nothing: a signal ended the program, or it closed the stream"


def _case(tests: Mapping[str, Any], index: int, count: int) -> Any:
    """Return a test as the request or its row has it; None if that is not known."""
    cases = tests.get("cases") or []
    if tests.get("kind") == "dataset":
        cases = list(_cases_of_row(tests.get("row"), _MAX_DEPTH))
        # Otherwise the tests are others, or there are more than one reading of the row.
        if not (len(cases) == count or tests.get("first") == count < len(cases)):
            return None
    return cases[index] if index < len(cases) else None


def _shown_case(case: Any) -> Iterator[str]:
    if isinstance(case, str):
        yield f"  test:            {quoted(case)}"
    elif isinstance(case, dict):
        given, expected = parts_of(case)
        yield f"  input:           {_shown(given)}"
        yield f"  expected:        {_shown(expected)}"
    else:
        yield "  input:           that of the test in the row"


def parts_of(case: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what a test gives to the program, and what it expects."""
    given = case.get("stdin", case.get("args", case.get("input", "")))
    return given, case.get("stdout", case.get("expected", case.get("output", "")))


def _shown(value: Any) -> str:
    return quoted(value if isinstance(value, str) else json.dumps(value))


def _cases_of_row(row: Any, depth: int) -> Iterator[Any]:
    """Yield what looks like tests in a row, in order."""
    row = parsed(row)
    if isinstance(row, dict):
        for names in (("inputs", "outputs"), ("input", "output")):
            given, expected = (row.get(name) for name in names)
            if isinstance(given, list) and isinstance(expected, list):
                pairs = zip(given, expected, strict=False)
                yield from ({"input": each[0], "output": each[1]} for each in pairs)
                return
        row = list(row.values())
    elif isinstance(row, list):
        is_test = [_is_test(each) for each in row]
        if row and all(is_test):
            yield from row
            return
    if isinstance(row, list) and depth:
        for each in row:
            yield from _cases_of_row(each, depth - 1)


def _is_test(value: Any) -> bool:
    if isinstance(value, str):
        return "assert" in value
    return isinstance(value, dict) and {"input", "output"} <= value.keys()


def _threshold(request: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    rate = score.get("pass_rate")
    passes = "no test was run" if rate is None else f"{number(100 * rate)}% of the tests pass"
    if request.get("mode") == "all_pass":
        return f"Decided by: mode all_pass, in which all tests must pass; {passes}."
    tests = request.get("tests") or {}
    rule = ""
    if tests.get("kind") == "stdio":
        program = tests.get("checker_program")
        checker = (
            "its checker program" if program else f"the checker {tests.get('checker', 'tokens')}"
        )
        rule = f" Outputs are compared by {checker}."
    elif tests.get("tolerance"):
        rule = f" Numbers may differ by {number(tests['tolerance'])}."
    return f"Decided by: the share of tests that pass; {passes}.{rule}"
