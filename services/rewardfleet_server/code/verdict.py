"""Planning the runs of a program from its tests, and judging their results.

All of this happens outside the sandbox, where expected values stay, and has no side effects.
"""

import ast
import json
import math
import re
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rewardfleet.wire.code import (
    MAX_TESTS,
    FunctionalTests,
    Outcome,
    PlainTests,
    StdioTests,
    Verdict,
)
from rewardfleet.wire.errors import InvalidRequest

from .sandboxes import MAX_REPORT_BYTES, Check, ProgramRun, RunLimits, RunResult
from .values import is_plain, values_equal

#: The suspicion of a run that ended together with its jail.
SANDBOX_DIED = "its sandbox died"
_EARLY = "exited, as if successful, before it had answered"

#: Bytes of standard output and standard error that a verdict shows.
_MAX_SHOWN = 1000

#: Outcomes of programs that failed before any check, by the `failed` field of the report.
_FAILURES = {
    "compile": Outcome.COMPILE_ERROR,
    "memory": Outcome.MEMORY_LIMIT,
    "exit": Outcome.EXITED_EARLY,
    "exception": Outcome.RUNTIME_ERROR,
}
#: Outcomes of checks by the exception that they raised. Any other one is a runtime error.
_RAISED = {
    "AssertionError": Outcome.WRONG_ANSWER,
    "MemoryError": Outcome.MEMORY_LIMIT,
    "SystemExit": Outcome.EXITED_EARLY,
}
#: Outcomes of a run that override the answer to its only check.
_EXCEEDED = {Outcome.TIME_LIMIT, Outcome.OUTPUT_LIMIT, Outcome.MEMORY_LIMIT}

#: Lines of a report that are read: more than there can be checks.
_MAX_LINES = MAX_TESTS + 10

#: Without alternatives that overlap, so that a long word that is not a number takes linear time.
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class RunVerdicts:
    """The verdicts of one run, and signs of tampering."""

    verdicts: list[Verdict]
    suspicions: list[str] = field(default_factory=list)


class TestRun(Protocol):
    """A run of the program for one or more tests, with what is expected of it."""

    @property
    def run(self) -> ProgramRun: ...

    def judge(self, result: RunResult, limits: RunLimits) -> RunVerdicts:
        """Return the verdicts of the run's tests."""


def plan_runs(tests: PlainTests) -> Sequence[TestRun]:
    """Return the runs that the tests require, in order.

    Raises:
        InvalidRequest: A case is not an assert, or a case or the setup is not valid Python.
    """
    if isinstance(tests, StdioTests):
        return [
            StdioRun(ProgramRun(_encoded(case.stdin), tests.setup), _encoded(case.stdout), tests)
            for case in tests.cases
        ]
    if isinstance(tests, FunctionalTests):
        return [
            CallRun(
                ProgramRun(setup=tests.setup, checks=(_call_check(tests, index),)),
                (ExpectedValue(case.expected, as_json=True),),
            )
            for index, case in enumerate(tests.cases)
        ]
    _parse(tests.setup, "tests.setup")
    checks = [_assert_check(case, index, tests.tolerance) for index, case in enumerate(tests.cases)]
    groups = [checks] if tests.single_run else [[check] for check in checks]
    return [
        CallRun(
            ProgramRun(setup=tests.setup, checks=tuple(check for check, _ in group)),
            tuple(expected for _, expected in group),
        )
        for group in groups
    ]


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _call_check(tests: FunctionalTests, index: int) -> Check:
    args = tuple(tests.cases[index].args)
    return Check("call", tests.fn_name, secrets.token_hex(16), args)


# Runs that read and print


@dataclass(frozen=True)
class StdioRun:
    """A run that reads standard input and prints."""

    run: ProgramRun
    expected: bytes
    tests: StdioTests

    def judge(self, result: RunResult, limits: RunLimits) -> RunVerdicts:
        outcome = failure(result, limits)
        if outcome is None:
            right = self._is_right(*self._texts(result.stdout))
            outcome = Outcome.ACCEPTED if right else Outcome.WRONG_ANSWER
        # Without checks, the supervisor reports nothing but a failure.
        forged = any("failed" not in line for line in _report_lines(result.report))
        return RunVerdicts([_verdict(outcome, result)], _suspicions(outcome, result, forged))

    def _texts(self, printed: bytes) -> tuple[bytes, bytes]:
        if not self.tests.ignore_case:
            return printed, self.expected
        return printed.lower(), self.expected.lower()

    def _is_right(self, printed: bytes, expected: bytes) -> bool:
        if self.tests.checker == "exact":
            return _unix(printed) == _unix(expected)
        wanted = expected.split()
        got = printed.split(None, len(wanted))  # limits the work to the size of the test
        if got and len(got) > len(wanted):
            return False
        if got == wanted:
            return True
        if self.tests.checker == "tokens" or len(got) != len(wanted):
            return False
        return all(
            one == other or _close(one, other, self.tests.tolerance)
            for one, other in zip(got, wanted, strict=True)
        )


def _unix(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").rstrip(b"\n")


def _close(printed: bytes, expected: bytes, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(printed) and _NUMBER.fullmatch(expected)):
        return False
    if printed.lstrip(b"+-").isdigit() and expected.lstrip(b"+-").isdigit():
        return _integer_key(printed) == _integer_key(expected)  # a count is right or wrong
    got, wanted = float(printed), float(expected)
    # The tolerance is relative to the expected number only, so that a huge printed one is not
    # close to anything. Nothing is close to an expected number beyond the range of floats.
    is_near = abs(got - wanted) <= tolerance * max(1.0, abs(wanted))
    return math.isfinite(wanted) and is_near


def _integer_key(number: bytes) -> tuple[bool, bytes]:
    """Return the sign and digits of an integer. `int` is slow for a long one, or refuses it."""
    digits = number.lstrip(b"+-").lstrip(b"0")
    return number.startswith(b"-") and bool(digits), digits


# Runs that answer checks


@dataclass(frozen=True)
class ExpectedValue:
    """The expected answer to a check; see `values_equal`."""

    expected: Any
    as_json: bool
    tolerance: float = 0.0


@dataclass(frozen=True)
class CallRun:
    """A run that answers checks.

    Attributes:
        run: The run, with its checks.
        expected: One per check; None if the assert is evaluated in the jail.
    """

    run: ProgramRun
    expected: tuple[ExpectedValue | None, ...]

    def judge(self, result: RunResult, limits: RunLimits) -> RunVerdicts:
        answers: dict[str, dict[str, Any]] = {}
        forged = False
        nonces = {check.nonce for check in self.run.checks}
        for line in _report_lines(result.report):
            nonce = line.get("nonce")
            if isinstance(nonce, str) and nonce in nonces and nonce not in answers:
                answers[nonce] = line
            else:
                forged = forged or "failed" not in line
        failed = failure(result, limits)
        # If several checks share a run, an answer was given before the run exceeded a limit.
        if failed in _EXCEEDED and len(nonces) == 1:
            answers.clear()
        unanswered = failed or Outcome.EXITED_EARLY
        verdicts, suspicions = [], _suspicions(unanswered, result, forged)
        for check, expected in zip(self.run.checks, self.expected, strict=True):
            answer = answers.get(check.nonce)
            outcome = unanswered if answer is None else _outcome(answer, expected)
            by_jail = answer is not None and expected is None
            verdicts.append(_verdict(outcome, result, by_jail=by_jail))
            if answer is not None and not is_plain(answer.get("value")):
                kind = str(answer["value"]["other"])[:60]
                suspicions.append(f"answered with {kind!r}, which is not a plain value")
        if len(answers) == len(nonces):
            suspicions = [each for each in suspicions if each != _EARLY]
        return RunVerdicts(verdicts, suspicions)


def _assert_check(case: str, index: int, tolerance: float) -> tuple[Check, ExpectedValue | None]:
    """Split an assert into an expression to evaluate in the jail and its expected value.

    Only a comparison with a literal can be split. Anything else is evaluated in the jail.
    """
    statements = _parse(case, f"tests.cases.{index}")
    has_assert = any(isinstance(node, ast.Assert) for each in statements for node in ast.walk(each))
    if not has_assert:
        raise InvalidRequest(
            f"tests.cases.{index}: give one assert statement, or a script with asserts"
        )
    nonce = secrets.token_hex(16)
    statement = statements[0]
    if len(statements) > 1 or not isinstance(statement, ast.Assert):
        return Check("assert", case, nonce), None
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        for expression, known in ((left, right), (right, left)):
            literal = _literal(known)
            if literal is not None and _is_equality(test.ops[0], literal[0]):
                expected = ExpectedValue(literal[0], as_json=False, tolerance=tolerance)
                source = ast.get_source_segment(case, expression)
                if source is not None:
                    return Check("eval", f"({source}\n)", nonce), expected
    return Check("assert", case, nonce), None


def _parse(source: str, field_name: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{field_name}: not valid Python: {error}") from None


def _literal(node: ast.expr) -> tuple[Any] | None:
    """Return the value of a literal, in a tuple; None if the expression is not a literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_equality(operator: ast.cmpop, literal: object) -> bool:
    is_singleton = literal is None or isinstance(literal, bool)
    return isinstance(operator, ast.Eq) or (isinstance(operator, ast.Is) and is_singleton)


def _outcome(answer: dict[str, Any], expected: ExpectedValue | None) -> Outcome:
    if "raised" in answer:
        return _RAISED.get(str(answer["raised"]), Outcome.RUNTIME_ERROR)
    if expected is None:
        return Outcome.ACCEPTED if answer.get("held") is True else Outcome.WRONG_ANSWER
    if "value" not in answer:
        return Outcome.WRONG_ANSWER
    try:
        right = values_equal(
            answer["value"],
            expected.expected,
            as_json=expected.as_json,
            tolerance=expected.tolerance,
        )
    except RecursionError:  # a forged value: the supervisor limits the depth
        right = False
    return Outcome.ACCEPTED if right else Outcome.WRONG_ANSWER


# All runs


def failure(result: RunResult, limits: RunLimits) -> Outcome | None:  # noqa: PLR0911 - one for each outcome
    """Return why a run failed, whatever its tests; None if it ended well."""
    if result.stopped == "died":
        return Outcome.RUNTIME_ERROR
    if result.stopped == "files":
        return Outcome.OUTPUT_LIMIT
    if result.stopped or result.cpu_ms > limits.cpu_s * 1000:
        return Outcome.TIME_LIMIT
    written = max(len(result.stdout), len(result.stderr))
    is_too_much = written > limits.output_bytes or len(result.report) > MAX_REPORT_BYTES
    if is_too_much or result.exit_code == -signal.SIGXFSZ:
        return Outcome.OUTPUT_LIMIT
    if result.exit_code == -signal.SIGXCPU:
        return Outcome.TIME_LIMIT
    if result.exit_code == 0:
        return None
    for line in _report_lines(result.report):
        why = line.get("failed")
        if isinstance(why, str) and why in _FAILURES:
            return _FAILURES[why]
    # A program cannot send signals, so this one came from the kernel, for lack of memory.
    is_killed = result.exit_code == -signal.SIGKILL
    return Outcome.MEMORY_LIMIT if is_killed else Outcome.RUNTIME_ERROR


def _report_lines(report: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines of a report. One that cannot be read is empty, as no genuine line is."""
    for line in report.split(b"\n", _MAX_LINES):
        if not line:
            continue
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            read = None
        yield read if isinstance(read, dict) else {}


def _suspicions(outcome: Outcome, result: RunResult, forged: bool) -> list[str]:
    suspicions = []
    if forged:
        suspicions.append("wrote to the report, where only the supervisor writes")
    if outcome is Outcome.EXITED_EARLY:
        suspicions.append(_EARLY)
    if result.stopped == "died":
        suspicions.insert(0, SANDBOX_DIED)
    return suspicions


def _verdict(outcome: Outcome, result: RunResult, *, by_jail: bool = False) -> Verdict:
    stderr = result.stderr
    if len(stderr) > _MAX_SHOWN:  # the reason for a failure comes last
        stderr = stderr[: _MAX_SHOWN // 2] + b"\n...\n" + stderr[-_MAX_SHOWN // 2 :]
    return Verdict(
        verdict=outcome,
        verdict_by="jail" if by_jail else "service",
        cpu_ms=round(result.cpu_ms, 3),
        wall_ms=round(result.fork_ms + result.run_ms, 3),
        stdout=result.stdout[:_MAX_SHOWN].decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )
