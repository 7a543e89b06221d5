"""Planning the runs of a program from its tests, and judging their results, without side effects.

All of this happens outside the sandbox, where expected values stay.
"""

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any, NamedTuple

from rewardfleet.wire.code import (
    MAX_TESTS,
    AssertTests,
    DecidedBy,
    FunctionalCase,
    FunctionalTests,
    Outcome,
    PlainTests,
    StdioTests,
    Verdict,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.datasets.rows import AppsTests, with_integer_keys
from rewardfleet_server.code.sandboxes import (
    MAX_REPORT_BYTES,
    Check,
    ProgramRun,
    RunLimits,
    RunResult,
)
from rewardfleet_server.code.tests.asserts import ParsedAssert
from rewardfleet_server.code.tests.calls import CallForm

from .output_checkers import output_equals
from .values import Equality, Tolerance, is_plain

SANDBOX_DIED = "its sandbox died"  #: the suspicion of a run that ended together with its jail
ALIKE = "all expected outputs are "  #: how the suspicion of tests begins that a constant passes
#: How the suspicion of a pass ends that the program could decide, and that is none with `strict`.
REJECTED_BY_STRICT = ", which `strict` rejects"
#: The suspicion of an output on which its checker failed, and `Decision.failed` of an exception.
CHECKER_FAILED, CHECKER_RAISED = "its checker failed", "exception"
_CHECKER_FAILS = 3  #: the exit status of a checker that failed, by testlib's convention

_MAX_CHECKS = 10**9  #: checks of one test that a verdict counts
_MAX_SHOWN = 1000  #: bytes of standard output and standard error that a verdict shows
#: Characters of a wrong value, and of a checker's message, that a verdict shows.
_MAX_RETURNED = 200

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
_PASSES = {Outcome.ACCEPTED, Outcome.LEFT_OUT}
#: Outcomes of a run that override the answer to its only check.
_EXCEEDED = {Outcome.TIME_LIMIT, Outcome.OUTPUT_LIMIT, Outcome.MEMORY_LIMIT}

#: Lines of a report, as the supervisor writes them: why the program failed; an answer.
_FAILED = re.compile(rb'\{"failed": "(\w{1,20})"\}')
_ANSWER = re.compile(rb'\{"nonce": "(\w{1,64})"')
_MAX_LINES = MAX_TESTS + 10  #: lines of a report that are read: more than there can be checks


class CheckerFiles(NamedTuple):
    """What a checker program decides on."""

    stdin: bytes
    output: bytes
    answer: bytes


@dataclass(frozen=True)
class Decision:
    """What a checker program decided on an output."""

    outcome: Outcome  #: `accepted` or `wrong_answer`
    message: str  #: the beginning of what it printed; if it failed, the last line
    failed: str | None  #: why it failed; None if it decided

    @property
    def suspicion(self) -> str | None:
        """The sign of tampering; an exception is none, as outputs can make checkers raise one."""
        if self.failed in {None, CHECKER_RAISED}:
            return None
        return f"{CHECKER_FAILED} on the output ({self.failed})"


@dataclass(frozen=True)
class RunVerdicts:
    """The verdicts of one run."""

    verdicts: list[Verdict]  #: one per test of the run
    suspicions: list[str] = field(default_factory=list)  #: signs of tampering
    #: What the checker program must decide on, if the verdict is its.
    undecided: CheckerFiles | None = None
    again: "TestRun | None" = None  #: a run that replaces this one, if the submission has time left


def plan_runs(
    tests: PlainTests, asserts: Sequence[ParsedAssert], forms: Sequence[CallForm] = ()
) -> Sequence["TestRun"]:
    """Return the runs that the tests, or their parsed cases, require, with new secrets."""
    if isinstance(tests, StdioTests):
        return [
            StdioRun(ProgramRun(encoded(case.stdin), tests.setup), encoded(case.stdout), tests)
            for case in tests.cases
        ]
    if isinstance(tests, FunctionalTests):
        return [_call_run(tests, *each) for each in zip_longest(tests.cases, forms)]
    groups = [asserts] if tests.single_run else [[each] for each in asserts]
    return [assert_run(tests, group) for group in groups]


def _call_run(tests: FunctionalTests, case: FunctionalCase, form: CallForm | None) -> "CallRun":
    expected: tuple[Any, ...] = (case.expected,)
    has_integers = False
    if isinstance(tests, AppsTests):
        expected = tests.accepted(case.expected)
        only = case.args[0] if len(case.args) == 1 else None
        has_integers = isinstance(only, dict) and with_integer_keys(only) is not None
    called = {} if form is None else form._asdict()
    args = tuple(case.args)
    check = Check("call", tests.fn_name, args=args, integer_keys=has_integers, **called)
    run = ProgramRun(setup=tests.setup, checks=(check,))
    return CallRun(run, (expected,), _equality(tests, as_json=True))


def assert_run(tests: AssertTests, asserts: Sequence[ParsedAssert]) -> "CallRun":
    """Return one run that evaluates asserts, with new secrets."""
    rule = _equality(tests, as_json=False)
    # What one process evaluates, it evaluates in order.
    is_apart = any(each.kind in {"value", "assert"} for each in asserts)
    checks = tuple(
        Check(
            "value" if is_apart and each.kind == "eval" else each.kind,
            each.source,
            entry_point=tests.entry_point,
        )
        for each in asserts
    )
    expected = tuple(each.expected for each in asserts)
    run = ProgramRun(setup=tests.setup, checks=checks)
    return CallRun(run, expected, rule, tests.strict, tuple(asserts))


def first_failure(verdicts: Sequence[Verdict]) -> int:
    """Return the index of the first test that failed; the number of tests if none did."""
    failures = (n for n, each in enumerate(verdicts) if each.verdict not in _PASSES)
    return next(failures, len(verdicts))


def encoded(text: str) -> bytes:
    """Return a text of a test as bytes."""
    return text.encode(errors="surrogatepass")


def _equality(tests: FunctionalTests | AssertTests, *, as_json: bool) -> Equality:
    tolerance = Tolerance(tests.tolerance, tests.relative_tolerance)
    any_order = tests.any_order if isinstance(tests, FunctionalTests) else False
    return Equality(tolerance, as_json, tests.bool_is_int, any_order)


# Runs that read and print


@dataclass(frozen=True)
class StdioRun:
    """A run that reads standard input and prints."""

    run: ProgramRun
    expected: bytes
    tests: StdioTests

    def judge(self, result: RunResult, limits: RunLimits) -> RunVerdicts:
        """Return the verdict of the run's test."""
        outcome = failure(result, limits)
        # Without checks, the supervisor reports nothing but a failure.
        forged = any(not _FAILED.fullmatch(line) for line in _lines(result.report))
        undecided = None
        if outcome is None and self.tests.checker_program is not None:
            outcome = Outcome.SKIPPED
            undecided = CheckerFiles(self.run.stdin, result.stdout, self.expected)
        elif outcome is None:
            tests = self.tests
            rule = tests.checker, Tolerance(tests.tolerance, tests.relative_tolerance)
            pair = result.stdout, self.expected
            right = output_equals(*pair, *rule, ignore_case=tests.ignore_case)
            outcome = Outcome.ACCEPTED if right else Outcome.WRONG_ANSWER
        checks = int(outcome in {Outcome.ACCEPTED, Outcome.WRONG_ANSWER})
        by: DecidedBy = "service" if undecided is None else "checker"
        verdict = _verdict(outcome, result, by=by, checks=checks)
        suspicions = _suspicions(result, forged=forged, is_early=outcome is Outcome.EXITED_EARLY)
        return RunVerdicts([verdict], suspicions, undecided)


# Runs that answer checks


@dataclass(frozen=True)
class CallRun:
    """A run that answers checks."""

    run: ProgramRun  #: the run, with its checks
    #: The accepted values per check; None if the complete assert is evaluated in the jail.
    expected: tuple[tuple[Any, ...] | None, ...]
    rule: Equality  #: how values are compared
    strict: bool = False  #: whether a pass that the program could decide is a wrong answer
    #: What the checks were made of. One per check.
    asserts: tuple[ParsedAssert, ...] = ()
    #: Verdicts that an earlier run has found. One per check.
    known: tuple[Verdict | None, ...] = ()

    def judge(self, result: RunResult, limits: RunLimits) -> RunVerdicts:
        """Return the verdicts of the run's tests."""
        nonces = {check.nonce for check in self.run.checks}
        answers, forged = _answers(result.report, nonces)
        if result.test_report is not None:  # the program has no answer to give
            forged = forged or bool(answers)
            answers, _ = _answers(result.test_report, nonces)
        failed = failure(result, limits)
        # If several checks share a run, an answer was given before the run exceeded a limit.
        if failed in _EXCEEDED and len(nonces) == 1:
            answers.clear()
        unanswered = failed or Outcome.EXITED_EARLY
        is_early = unanswered is Outcome.EXITED_EARLY and len(answers) < len(nonces)
        verdicts, suspicions = [], _suspicions(result, forged=forged, is_early=is_early)
        verdict_of = cache(partial(_verdict, result=result))  # most of a thousand are alike
        for check, expected in zip(self.run.checks, self.expected, strict=True):
            answer = answers.get(check.nonce)
            outcome = unanswered if answer is None else _outcome(answer, expected, self.rule)
            checks = 0 if answer is None else _checks_of(answer)
            inside = self._decided_inside(answer, expected, result)
            if outcome is Outcome.ACCEPTED and not checks:
                outcome = Outcome.WRONG_ANSWER
                suspicions.append("no check was evaluated")
            if inside and outcome is Outcome.ACCEPTED:
                rejected = REJECTED_BY_STRICT if self.strict else ""
                outcome = Outcome.WRONG_ANSWER if self.strict else outcome
                suspicions.append(f"decided by {inside}{rejected}")
            verdict = verdict_of(outcome, by="jail" if inside else "service", checks=checks)
            if outcome is Outcome.WRONG_ANSWER and answer is not None and "value" in answer:
                returned = json.dumps(answer["value"])[:_MAX_RETURNED]
                verdict = verdict.model_copy(update={"returned": returned})
            verdicts.append(verdict)
            if answer is not None and not is_plain(answer.get("value")):
                kind = str(answer["value"]["other"])[:60]
                suspicions.append(f"answered with {kind!r}, which is not a plain value")
        if self.known:
            pairs = zip(self.known, verdicts, strict=True)
            return RunVerdicts([known or found for known, found in pairs], suspicions)
        return RunVerdicts(verdicts, suspicions, again=self._again(answers, verdicts))

    def _decided_inside(
        self, answer: dict[str, Any] | None, expected: tuple[Any, ...] | None, result: RunResult
    ) -> str:
        """Return what in the program's process decided on a test; "" if nothing did."""
        if answer is not None and result.test_report is not None and not self.known:
            return str(answer.get("inside", ""))
        is_inside = self.known or (answer is not None and expected is None)
        return "the program's process" if is_inside else ""

    def answers(self, result: RunResult) -> list[dict[str, Any]]:
        """Return the answers to the checks, which no program of a policy has given."""
        nonces = [check.nonce for check in self.run.checks]
        answers, _ = _answers(result.test_report or result.report, {*nonces})
        return [answers.get(nonce, {"raised": ""}) for nonce in nonces]

    def checks_alone(self, result: RunResult) -> list[int | None]:
        """Return how many checks each case has, None if it failed; or raise InvalidRequest."""
        found: list[int | None] = []
        for answer, expected in zip(self.answers(result), self.expected, strict=True):
            if answer.get("raised") == "UnsupportedTest":
                raise InvalidRequest(f"tests: {str(answer.get('message'))[:300]}")
            passed = _outcome(answer, expected, self.rule) is Outcome.ACCEPTED
            found.append(_checks_of(answer) if passed else None)
        return found

    def _again(
        self, answers: Mapping[str, Mapping[str, Any]], verdicts: Sequence[Verdict]
    ) -> "CallRun | None":
        """Return a run in the program's process, of tests that failed and may need its objects."""
        if self.strict:
            return None
        known: list[Verdict | None] = []
        for check, verdict, each in zip(self.run.checks, verdicts, self.asserts, strict=False):
            refused = answers.get(check.nonce, {}).get("refused") is True
            doubtful = each.may_repeat and verdict.verdict is not Outcome.ACCEPTED and not refused
            doubtful &= each.kind in {"value", "assert"}
            known.append(None if doubtful else verdict)
        if all(known):
            return None
        checks = tuple(
            replace(check, kind="eval" if check.kind == "value" else "inside")
            for check in self.run.checks
        )
        run = replace(self.run, checks=checks)
        return CallRun(run, self.expected, self.rule, known=tuple(known))


#: A run of the program for one or more tests, with what is expected of it.
TestRun = StdioRun | CallRun


def _answers(report: bytes, nonces: set[str]) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return the answers in a report by nonce, and whether it has lines that are not genuine."""
    answers: dict[str, dict[str, Any]] = {}
    forged = False
    for line in _lines(report):
        start = _ANSWER.match(line)  # what is no answer is not worth parsing
        nonce = start[1].decode() if start else ""
        if nonce in nonces and nonce not in answers:
            answers[nonce] = _parsed(line)
        else:
            forged = forged or not _FAILED.fullmatch(line)
    return answers, forged


def _checks_of(answer: dict[str, Any]) -> int:
    """Return how many checks were evaluated for an answer, which may be forged."""
    if "value" in answer:
        return 1
    checks = answer.get("checks")
    return checks if isinstance(checks, int) and 0 <= checks <= _MAX_CHECKS else 0


def _outcome(answer: dict[str, Any], expected: tuple[Any, ...] | None, rule: Equality) -> Outcome:
    if "raised" in answer:
        return _RAISED.get(str(answer["raised"]), Outcome.RUNTIME_ERROR)
    if "too_large" in answer:
        return Outcome.ANSWER_TOO_LARGE
    if expected is None:
        return Outcome.ACCEPTED if answer.get("held") is True else Outcome.WRONG_ANSWER
    if "value" not in answer:
        return Outcome.WRONG_ANSWER
    try:
        right = any(rule.equal(answer["value"], each) for each in expected)
    except (RecursionError, ArithmeticError, ValueError):  # a forged or an extreme value
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
    found = filter(None, map(_FAILED.fullmatch, _lines(result.report)))
    outcomes = (_FAILURES.get(each[1].decode()) for each in found)
    return next(filter(None, outcomes), Outcome.RUNTIME_ERROR)


def decision(result: RunResult, limits: RunLimits) -> Decision:
    """Return what a checker program decided. An output on which it fails is a wrong answer."""
    message = (result.stderr or result.stdout).decode(errors="replace").strip()
    outcome, failed = failure(result, limits), None
    if outcome is Outcome.RUNTIME_ERROR:
        if result.stopped == "died":
            failed = "its jail died"
        elif result.exit_code < 0:
            failed = f"signal {-result.exit_code}"
        elif result.report:  # the supervisor reports nothing but a failure
            failed = CHECKER_RAISED
        elif result.exit_code == _CHECKER_FAILS:
            failed = f"exit status {_CHECKER_FAILS}"
    elif outcome is not None:
        failed = outcome.replace("_", " ")
    if failed is not None:
        message = message.rpartition("\n")[2]
    outcome = Outcome.WRONG_ANSWER if failed or result.exit_code else Outcome.ACCEPTED
    return Decision(outcome, message[:_MAX_RETURNED], failed)


def _lines(report: bytes) -> Iterator[bytes]:
    return filter(None, report.split(b"\n", _MAX_LINES))


def _parsed(line: bytes) -> dict[str, Any]:
    """Return a line of a report. One that cannot be read is empty, as no genuine line is."""
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _suspicions(result: RunResult, *, forged: bool, is_early: bool) -> list[str]:
    suspicions = [SANDBOX_DIED] if result.stopped == "died" else []
    if forged:
        suspicions.append("wrote to the report, where only the supervisor writes")
    if is_early:
        suspicions.append("exited, as if successful, before it had answered")
    return suspicions


def _verdict(outcome: Outcome, result: RunResult, *, by: DecidedBy, checks: int) -> Verdict:
    stderr = result.stderr
    if len(stderr) > _MAX_SHOWN:  # the reason for a failure comes last
        stderr = stderr[: _MAX_SHOWN // 2] + b"\n...\n" + stderr[-_MAX_SHOWN // 2 :]
    return Verdict(
        verdict=outcome,
        verdict_by=by,
        checks=checks,
        cpu_ms=round(result.cpu_ms, 3),
        wall_ms=round(result.fork_ms + result.run_ms, 3),
        stdout=result.stdout[:_MAX_SHOWN].decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )
