"""Why a program's score is below 1, or should be looked at."""

from rewardfleet.wire.causes import CodeCause
from rewardfleet.wire.code import CodeScore, Outcome
from rewardfleet_server.code.running.submission import Submission

from .verdict import ALIKE, REJECTED_BY_STRICT, SANDBOX_DIED

_PASSES = {Outcome.ACCEPTED, Outcome.LEFT_OUT}


def cause_of(score: CodeScore, submission: Submission) -> CodeCause | None:
    """Return why a score is below 1; None if all tests pass and the program decided on none.

    Args:
        score: A score with its verdicts and suspicions.
        submission: What the request gave, which may have the score of an equal program.
    """
    if submission.critique_invalid:
        return CodeCause.NO_JUDGMENT
    failures = (n for n, each in enumerate(score.verdicts) if each.verdict not in _PASSES)
    index = next(failures, None)
    if index is None:
        is_forgeable = any(each.verdict_by == "jail" for each in score.verdicts)
        is_alike = any(each.startswith(ALIKE) for each in score.suspicions)
        of_tests = CodeCause.ALIKE_OUTPUTS if is_alike else None
        return CodeCause.DECIDED_BY_PROGRAM if is_forgeable else of_tests
    outcome = score.verdicts[index].verdict
    if outcome is Outcome.COMPILE_ERROR:
        return submission.cause_of_compile_error
    if outcome is Outcome.SKIPPED:  # no test before it failed, so the time was up
        return CodeCause.TIME_LIMIT
    return _special_cause(score, index) or CodeCause[Outcome(outcome).name]


def _special_cause(score: CodeScore, index: int) -> CodeCause | None:
    """Return a cause of the failure of a test that is narrower than its outcome."""
    if score.verdicts[index].missing_module:
        return CodeCause.MISSING_MODULE
    if score.verdicts[index].refused_by_jail:
        return CodeCause.REFUSED_BY_JAIL
    own = [each for each in score.suspicions if each.startswith(f"test {index + 1}: ")]
    if any(each.endswith(SANDBOX_DIED) for each in own):
        return CodeCause.SANDBOX_DIED
    if any(each.endswith(REJECTED_BY_STRICT) for each in own):
        return CodeCause.DECIDED_BY_PROGRAM
    return None
