"""From tests to runs of the program, and from how these ended to verdicts.

All of it is done outside the jail, and is pure: what is expected stays here.
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

#: Bytes of standard output and error that a verdict shows.
_HEAD = 1000

#: What the warden says of a program that failed before it was asked anything.
_FAILURES = {
    "compile": Outcome.COMPILE_ERROR,
    "memory": Outcome.MEMORY_LIMIT,
    "exit": Outcome.EXITED_EARLY,
    "exception": Outcome.RUNTIME_ERROR,
}
#: What became of a check that raised; everything else is a runtime error.
_RAISED = {
    "AssertionError": Outcome.WRONG_ANSWER,
    "MemoryError": Outcome.MEMORY_LIMIT,
    "SystemExit": Outcome.EXITED_EARLY,
}

#: What a run that took too much has lost, though it answered.
_LIMITS = {Outcome.TIME_LIMIT, Outcome.OUTPUT_LIMIT, Outcome.MEMORY_LIMIT}

#: Lines of a report that are looked at: more than there can be checks.
_MOST_LINES = MAX_TESTS + 10

#: In which no digit can be told in two ways: a long word that is no number takes no time.
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class RunVerdicts:
    """The verdicts of one run, and what an honest program would not have done."""

    verdicts: list[Verdict]
    suspicions: list[str] = field(default_factory=list)


class TestRun(Protocol):
    """A run of the program, and what is expected of it."""

    @property
    def run(self) -> ProgramRun: ...

    def judge(self, ended: RunResult, bounds: RunLimits) -> RunVerdicts:
        """Give the verdicts of the tests that the run stands for."""


def plan_runs(tests: PlainTests) -> Sequence[TestRun]:
    """Return the runs that the tests ask for, in order.

    Raises:
        InvalidRequest: A case is no assert, or it or the setup is no Python.
    """
    if isinstance(tests, StdioTests):
        return [
            StdioRun(ProgramRun(_encoded(case.stdin), tests.setup), _encoded(case.stdout), tests)
            for case in tests.cases
        ]
    if isinstance(tests, FunctionalTests):
        return [
            CallRun(
                ProgramRun(setup=tests.setup, checks=(_call(tests, index),)),
                (ExpectedValue(case.expected, as_json=True),),
            )
            for index, case in enumerate(tests.cases)
        ]
    _parsed(tests.setup, "tests.setup")
    questions = [_question(case, index, tests.tolerance) for index, case in enumerate(tests.cases)]
    groups = [questions] if tests.single_run else [[question] for question in questions]
    return [
        CallRun(
            ProgramRun(setup=tests.setup, checks=tuple(check for check, _ in group)),
            tuple(value for _, value in group),
        )
        for group in groups
    ]


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _call(tests: FunctionalTests, index: int) -> Check:
    args = tuple(tests.cases[index].args)
    return Check("call", tests.fn_name, secrets.token_hex(16), args)


# Programs that print


@dataclass(frozen=True)
class StdioRun:
    """A run that reads and prints."""

    run: ProgramRun
    expected: bytes
    tests: StdioTests

    def judge(self, ended: RunResult, bounds: RunLimits) -> RunVerdicts:
        outcome = failure(ended, bounds)
        if outcome is None:
            right = self._is_right(*self._texts(ended.stdout))
            outcome = Outcome.ACCEPTED if right else Outcome.WRONG_ANSWER
        # The warden reports a failure here, and nothing else.
        noise = [line for line in _lines(ended.report) if "failed" not in line]
        return RunVerdicts([_verdict(outcome, ended)], _suspicions(outcome, ended, bool(noise)))

    def _texts(self, printed: bytes) -> tuple[bytes, bytes]:
        if not self.tests.ignore_case:
            return printed, self.expected
        return printed.lower(), self.expected.lower()

    def _is_right(self, printed: bytes, wanted: bytes) -> bool:
        if self.tests.checker == "exact":
            return _unix(printed) == _unix(wanted)
        expected = wanted.split()
        got = printed.split(None, len(expected))  # no more words than the test is worth
        if got and len(got) > len(expected):
            return False
        if got == expected:
            return True
        if self.tests.checker == "tokens" or len(got) != len(expected):
            return False
        return all(
            one == other or _close(one, other, self.tests.tolerance)
            for one, other in zip(got, expected, strict=True)
        )


def _unix(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").rstrip(b"\n")


def _close(one: bytes, other: bytes, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    if one.lstrip(b"+-").isdigit() and other.lstrip(b"+-").isdigit():
        return _integer_key(one) == _integer_key(other)  # a count that is nearly right is wrong
    got, expected = float(one), float(other)
    # The expected number is the measure: a huge one of the program's is close to nothing. To one
    # that is itself beyond what a float can tell, nothing is.
    is_near = abs(got - expected) <= tolerance * max(1.0, abs(expected))
    return math.isfinite(expected) and is_near


def _integer_key(number: bytes) -> tuple[bool, bytes]:
    """A whole number's sign and digits: `int` takes long over a long one, or refuses it."""
    digits = number.lstrip(b"+-").lstrip(b"0")
    return number.startswith(b"-") and bool(digits), digits


# Programs that are asked


@dataclass(frozen=True)
class ExpectedValue:
    """An answer that is compared here."""

    expected: Any
    as_json: bool
    tolerance: float = 0.0


@dataclass(frozen=True)
class CallRun:
    """A run that is asked something; None is expected where the jail itself must judge."""

    run: ProgramRun
    expected: tuple[ExpectedValue | None, ...]

    def judge(self, ended: RunResult, bounds: RunLimits) -> RunVerdicts:
        answers: dict[str, dict[str, Any]] = {}
        noise = False
        nonces = {check.nonce for check in self.run.checks}
        for line in _lines(ended.report):
            nonce = line.get("nonce")
            if isinstance(nonce, str) and nonce in nonces and nonce not in answers:
                answers[nonce] = line
            else:
                noise = noise or "failed" not in line
        # A program that is silent about what it was asked ended before.
        failed = failure(ended, bounds)
        otherwise = failed or Outcome.EXITED_EARLY
        # With several checks, what was answered was so before the run failed.
        if failed in _LIMITS and len(nonces) == 1:
            answers.clear()
        verdicts, suspicions = [], _suspicions(otherwise, ended, noise)
        for check, value in zip(self.run.checks, self.expected, strict=True):
            answer = answers.get(check.nonce)
            outcome = otherwise if answer is None else _outcome(answer, value)
            by_jail = answer is not None and value is None
            verdicts.append(_verdict(outcome, ended, by_jail=by_jail))
            if answer is not None and not is_plain(answer.get("value")):
                kind = str(answer["value"]["other"])[:60]
                suspicions.append(f"answered with {kind!r}, which is no plain value")
        if len(answers) == len(nonces):
            suspicions = [each for each in suspicions if each != _EARLY]
        return RunVerdicts(verdicts, suspicions)


def _question(case: str, index: int, tolerance: float) -> tuple[Check, ExpectedValue | None]:
    """Take an assert apart: what to ask the program, and what it should answer."""
    statements = _parsed(case, f"tests.cases.{index}")
    is_any = any(isinstance(node, ast.Assert) for each in statements for node in ast.walk(each))
    if not is_any:
        raise InvalidRequest(f"tests.cases.{index}: give one assert statement, or a script of some")
    nonce = secrets.token_hex(16)
    statement = statements[0]
    if len(statements) > 1 or not isinstance(statement, ast.Assert):
        return Check("assert", case, nonce), None
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        for asked, known in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            literal = _literal(known)
            if literal is not None and _is_equality(test.ops[0], literal[0]):
                value = ExpectedValue(literal[0], as_json=False, tolerance=tolerance)
                source = ast.get_source_segment(case, asked)
                if source is not None:
                    return Check("eval", f"({source}\n)", nonce), value
    return Check("assert", case, nonce), None


def _parsed(source: str, place: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{place}: no Python: {error}") from None


def _literal(node: ast.expr) -> tuple[Any] | None:
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_equality(operator: ast.cmpop, literal: object) -> bool:
    is_one_of_a_kind = literal is None or isinstance(literal, bool)
    return isinstance(operator, ast.Eq) or (isinstance(operator, ast.Is) and is_one_of_a_kind)


def _outcome(answer: dict[str, Any], value: ExpectedValue | None) -> Outcome:
    if "raised" in answer:
        return _RAISED.get(str(answer["raised"]), Outcome.RUNTIME_ERROR)
    if value is None:
        return Outcome.ACCEPTED if answer.get("held") is True else Outcome.WRONG_ANSWER
    if "value" not in answer:
        return Outcome.WRONG_ANSWER
    try:
        right = values_equal(
            answer["value"], value.expected, as_json=value.as_json, tolerance=value.tolerance
        )
    except RecursionError:  # a forged value: the warden writes none as deep
        right = False
    return Outcome.ACCEPTED if right else Outcome.WRONG_ANSWER


# Any run


def failure(ended: RunResult, bounds: RunLimits) -> Outcome | None:  # noqa: PLR0911 - one for each outcome
    """Why a run failed, whatever it was to do; None where it ended well."""
    if ended.stopped == "died":
        return Outcome.RUNTIME_ERROR
    if ended.stopped == "files":
        return Outcome.OUTPUT_LIMIT
    if ended.stopped or ended.cpu_ms > bounds.cpu_s * 1000:
        return Outcome.TIME_LIMIT
    written = max(len(ended.stdout), len(ended.stderr))
    is_too_much = written > bounds.output_bytes or len(ended.report) > MAX_REPORT_BYTES
    if is_too_much or ended.exit_code == -signal.SIGXFSZ:
        return Outcome.OUTPUT_LIMIT
    if ended.exit_code == -signal.SIGXCPU:
        return Outcome.TIME_LIMIT
    if ended.exit_code == 0:
        return None
    for line in _lines(ended.report):
        why = line.get("failed")
        if isinstance(why, str) and why in _FAILURES:
            return _FAILURES[why]
    # A program cannot send signals. So it was the kernel, for want of memory.
    is_killed = ended.exit_code == -signal.SIGKILL
    return Outcome.MEMORY_LIMIT if is_killed else Outcome.RUNTIME_ERROR


def _lines(report: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a report; what cannot be read is empty, as nothing the warden writes is."""
    for line in report.split(b"\n", _MOST_LINES):
        if not line:
            continue
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            read = None
        yield read if isinstance(read, dict) else {}


#: Of a run that its whole jail died with.
SANDBOX_DIED = "broke its jail"
_EARLY = "ended, as if well, before it had answered"


def _suspicions(outcome: Outcome, ended: RunResult, noise: bool) -> list[str]:
    suspicions = []
    if noise:
        suspicions.append("wrote where only the warden writes")
    if outcome is Outcome.EXITED_EARLY:
        suspicions.append(_EARLY)
    if ended.stopped == "died":
        suspicions.insert(0, SANDBOX_DIED)
    return suspicions


def _verdict(outcome: Outcome, ended: RunResult, *, by_jail: bool = False) -> Verdict:
    stderr = ended.stderr
    if len(stderr) > _HEAD:  # what ended it stands at its end
        stderr = stderr[: _HEAD // 2] + b"\n...\n" + stderr[-_HEAD // 2 :]
    return Verdict(
        verdict=outcome,
        verdict_by="jail" if by_jail else "service",
        cpu_ms=round(ended.cpu_ms, 3),
        wall_ms=round(ended.fork_ms + ended.run_ms, 3),
        stdout=ended.stdout[:_HEAD].decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )
