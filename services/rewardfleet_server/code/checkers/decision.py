"""The decision of a checker program, from the result of its run."""

from dataclasses import dataclass

from rewardfleet.wire.code import Outcome
from rewardfleet_server.code.judging.verdict import failure
from rewardfleet_server.code.sandboxes import RunLimits, RunResult

#: The suspicion of an output on which its checker failed.
CHECKER_FAILED = "its checker failed"

#: `Decision.failed` of a checker that raised an exception.
EXCEPTION = "exception"
#: The exit status of a checker that failed, by testlib's convention.
_FAIL = 3
#: Characters of a message.
_MAX_MESSAGE = 200


@dataclass(frozen=True)
class Decision:
    """What a checker decided on an output."""

    outcome: Outcome  #: `accepted` or `wrong_answer`
    message: str  #: the beginning of what it printed; if it failed, the last line
    #: Why it failed; None if it decided.
    failed: str | None = None

    @property
    def suspicion(self) -> str | None:
        """The sign of tampering; none if it failed with an exception.

        Many checkers in Python raise one if they cannot read an output.
        """
        if self.failed in {None, EXCEPTION}:
            return None
        return f"{CHECKER_FAILED} on the output ({self.failed})"


def decision(result: RunResult, limits: RunLimits) -> Decision:
    """Return what a checker decided. An output on which it fails is a wrong answer."""
    message = (result.stderr or result.stdout).decode(errors="replace").strip()
    failed = _failed(result, limits)
    if failed is not None:
        last_line = message.rpartition("\n")[2]
        return Decision(Outcome.WRONG_ANSWER, last_line[:_MAX_MESSAGE], failed)
    outcome = Outcome.WRONG_ANSWER if result.exit_code else Outcome.ACCEPTED
    return Decision(outcome, message[:_MAX_MESSAGE])


def _failed(result: RunResult, limits: RunLimits) -> str | None:
    outcome = failure(result, limits)
    if outcome is None:
        return None
    if outcome is not Outcome.RUNTIME_ERROR:
        return outcome.replace("_", " ")
    if result.stopped == "died":
        return "its jail died"
    if result.exit_code < 0:
        return f"signal {-result.exit_code}"
    if result.report:  # the supervisor reports nothing but a failure
        return EXCEPTION
    return f"exit status {_FAIL}" if result.exit_code == _FAIL else None
