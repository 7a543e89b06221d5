"""One submission: the programs in a request, the verdicts on one of them, and their cause."""

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rewardfleet.text.program import answer_of
from rewardfleet.wire.causes import CodeCause
from rewardfleet.wire.code import (
    CodeRequest,
    CodeScore,
    CodeTiming,
    CritiqueJudgment,
    Outcome,
    Verdict,
)
from rewardfleet.wire.policy_text import MAX_CHARACTERS, UNUSABLE
from rewardfleet_server.code.judging.verdict import (
    ALIKE,
    REJECTED_BY_STRICT,
    SANDBOX_DIED,
    CheckerFiles,
    Decision,
    TestRun,
    first_failure,
)
from rewardfleet_server.code.sandboxes import ProgramRun, RunLimits, RunResult
from rewardfleet_server.code.text_parser import TextParser

#: What comes before the first statement, and its first character.
_STATEMENT = re.compile(r"\s*+(?:#[^\n]*+\s*+)*+[^\s#]")
#: Bytes of outputs that wait for the checker program at the same time, about.
_MAX_UNDECIDED_BYTES = 32 * 2**20
_WALL_FACTOR = 1.5  #: the budget of wall time, as a multiple of that of CPU time
_MIN_WALL_S = 0.1  #: seconds of wall time of a run, however little time is left


@dataclass(frozen=True)
class Submission:
    """The programs in a request, and the judgment of its critique."""

    request: CodeRequest
    program: str
    original_program: str | None  #: the program that the critique judged, if it was given
    #: The overall judgment of the critique, if it has exactly one.
    judgment: CritiqueJudgment | None

    @classmethod
    async def of(
        cls, request: CodeRequest, parser: TextParser, called: Collection[str]
    ) -> "Submission":
        """Parse the texts of a request, given what its tests call."""
        critique, original = request.critique, request.original_program
        judgment = None if critique is None else await parser.judgment(critique)
        program = await parser.program(request.revision or "", called)  # null is not scored
        original = None if original is None else await parser.program(original, called)
        return cls(request, program, original, judgment)

    @property
    def critique_invalid(self) -> bool:
        """Whether the critique has no judgment. Then nothing is run."""
        return self.request.critique is not None and self.judgment is None

    @property
    def needs_original_run(self) -> bool:
        """Whether the original program is run to determine whether the judgment is right."""
        is_given = self.original_program is not None and self.request.original_passed is None
        return self.judgment is not None and is_given

    def is_judgment_right(self, original_passed: bool) -> float:
        """Return 1 if the judgment agrees with whether the original program passed, else 0."""
        return float(original_passed == (self.judgment == "correct"))

    def cause_of(self, score: CodeScore) -> CodeCause | None:
        """Return why a score is below 1; None if all tests pass and the program decided on none."""
        if self.critique_invalid:
            return CodeCause.NO_JUDGMENT
        index = first_failure(score.verdicts)
        if index == len(score.verdicts):
            if any(each.verdict_by == "jail" for each in score.verdicts):
                return CodeCause.DECIDED_BY_PROGRAM
            is_alike = any(each.startswith(ALIKE) for each in score.suspicions)
            return CodeCause.ALIKE_OUTPUTS if is_alike else None
        verdict = score.verdicts[index]
        if verdict.verdict is Outcome.COMPILE_ERROR:
            return self._cause_of_compile_error()
        if verdict.verdict is Outcome.SKIPPED:  # no test before it failed, so the time was up
            return CodeCause.TIME_LIMIT
        own = [each for each in score.suspicions if each.startswith(f"test {index + 1}: ")]
        special = {
            CodeCause.MISSING_MODULE: verdict.missing_module,
            CodeCause.REFUSED_BY_JAIL: verdict.refused_by_jail,
            CodeCause.SANDBOX_DIED: any(each.endswith(SANDBOX_DIED) for each in own),
            CodeCause.DECIDED_BY_PROGRAM: any(each.endswith(REJECTED_BY_STRICT) for each in own),
        }
        usual = CodeCause[Outcome(verdict.verdict).name]
        return next((cause for cause, is_it in special.items() if is_it), usual)

    def _cause_of_compile_error(self) -> CodeCause:
        if UNUSABLE in self.program:
            return CodeCause.UNUSABLE_TEXT
        answer = answer_of(self.request.revision or "")  # all of it, if no program was found in it
        if not _STATEMENT.match(self.program) or answer.strip() == self.program.strip():
            return CodeCause.NO_CODE_BLOCK
        return CodeCause.COMPILE_ERROR


def why_no_program(program: str) -> str | None:
    """Return why an extracted program is not run; None if it is."""
    if not _STATEMENT.match(program):
        return "no program: the text has no statement"
    if UNUSABLE in program:
        return (
            "not a program: the text has a NUL, a lone surrogate, or more than "
            f"{MAX_CHARACTERS} characters"
        )
    return None


class SubmissionRun:
    """The verdicts on one program, collected while it runs. Used by one thread at a time.

    All runs share a budget of CPU time and one of wall time. Only what the program does itself uses
    them up: its CPU time, its sleep, removing what it left behind, and judging what it wrote.
    Waiting does not: for a jail, for memory, for a core, or in a pause of the machine. So a budget
    that ends is a result, however busy the machine is. The deadline of the call is for the rest.

    Args:
        numbers: The numbers of the tests, from 1, by which suspicions name them.
        max_seconds: The budget: seconds of CPU time, and 1.5 times as many of wall time.
        stop_at_failure: Whether the runs after the first failure are skipped.
    """

    def __init__(
        self,
        planned: Sequence[TestRun],
        limits: RunLimits,
        numbers: Sequence[int],
        max_seconds: float,
        *,
        stop_at_failure: bool,
    ) -> None:
        self.limits = limits
        self.numbers = numbers
        self.verdicts: list[Verdict] = []  #: one per test so far
        self.suspicions: list[str] = []  #: signs of tampering
        self.timing = CodeTiming()
        #: What the checker program must decide on, each with the index of its verdict, which is
        #: `skipped` until then.
        self.undecided: list[tuple[int, CheckerFiles]] = []
        #: Whether the program is to be run again on the tests that are left: after the decisions,
        #: or with less time.
        self.paused = False
        #: Whether the budget ended before the tests did: one had less time than its own limit, or
        #: was not run, checked or repeated. With a larger budget, its verdict may be another one.
        self.was_cut = False
        self._planned = list(planned)
        self._done = 0
        self._stop_at_failure = stop_at_failure
        # A wrong program should not run on all tests before the first decision.
        self._max_undecided = 1 if stop_at_failure else len(planned)
        self._undecided_bytes = 0
        self._cpu_ms_left = max_seconds * 1000
        self._wall_ms_left = max_seconds * 1000 * _WALL_FACTOR

    @property
    def runs(self) -> list[ProgramRun]:
        return [each.run for each in self._planned[self._done :]]

    @property
    def run_limits(self) -> RunLimits:
        """The limits of the next run: no program sleeps past the budget of all runs."""
        wall_s = min(self.limits.wall_s, max(self._wall_ms_left / 1000, _MIN_WALL_S))
        return replace(self.limits, wall_s=wall_s)

    @property
    def seconds_left(self) -> float:
        """The remaining budget, in the sense of `max_seconds`."""
        return min(self._cpu_ms_left, self._wall_ms_left / _WALL_FACTOR) / 1000

    def _charge(self, result: RunResult) -> None:
        self._cpu_ms_left -= result.cpu_ms
        self._wall_ms_left -= result.charged_ms

    def on_result(self, result: RunResult) -> bool:
        """Judge the result of a run; return whether to continue with the next one."""
        started = time.thread_time()
        judged = self._planned[self._done].judge(result, self.limits)
        self._wall_ms_left -= (time.thread_time() - started) * 1000
        self._charge(result)
        self.was_cut |= result.stopped == "wall" and result.charged_ms < self.limits.wall_s * 1000
        if judged.again is not None and self.seconds_left > 0:
            self._planned[self._done] = judged.again
            self.paused = True
            return False
        self.was_cut |= judged.again is not None
        self._done += 1
        index = len(self.verdicts)
        number = self.numbers[index]
        self.suspicions += [f"test {number}: {each}" for each in judged.suspicions]
        self.verdicts += judged.verdicts
        self.timing.fork = round(self.timing.fork + result.fork_ms, 3)
        self.timing.run = round(self.timing.run + result.run_ms, 3)
        self.timing.clean = round(self.timing.clean + result.clean_ms, 3)
        outcomes = {verdict.verdict for verdict in judged.verdicts}
        failed = outcomes != {Outcome.ACCEPTED}
        if judged.undecided is not None:
            failed = False
            self.undecided.append((index, judged.undecided))
            self._undecided_bytes += len(judged.undecided.output)
        is_over = Outcome.COMPILE_ERROR in outcomes or (failed and self._stop_at_failure)
        goes_on = self._goes_on(is_over=is_over)
        is_full = len(self.undecided) >= self._max_undecided
        is_full |= self._undecided_bytes >= _MAX_UNDECIDED_BYTES
        is_short = self._wall_ms_left < self.limits.wall_s * 1000
        self.paused = goes_on and (is_full or is_short) and self._done < len(self._planned)
        return goes_on and not self.paused

    def _goes_on(self, *, is_over: bool) -> bool:
        """Return whether there is something to do and time for it; note what the budget cuts."""
        is_left = bool(self.undecided) or self._done < len(self._planned)
        self.was_cut |= not is_over and is_left and self.seconds_left <= 0
        return not is_over and self.seconds_left > 0

    def on_decision(self, decision: Decision, result: RunResult) -> bool:
        """Take the checker's next decision; return whether another one is needed."""
        index, _ = self.undecided.pop(0)
        update = {"verdict": decision.outcome, "checker_message": decision.message}
        self.verdicts[index] = self.verdicts[index].model_copy(update=update)
        if decision.suspicion is not None:
            self.suspicions.append(f"test {self.numbers[index]}: {decision.suspicion}")
        self._charge(result)
        is_over = decision.outcome is not Outcome.ACCEPTED and self._stop_at_failure
        if is_over:
            del self.verdicts[index + 1 :]
        if not self._goes_on(is_over=is_over):
            self.undecided.clear()
            self.paused = False
        if not self.undecided:
            self._undecided_bytes = 0
            self._max_undecided *= 2
        return bool(self.undecided)
