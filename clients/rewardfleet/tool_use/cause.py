"""Why the reward of an answer is below what the options allow."""

from collections.abc import Sequence

from rewardfleet.wire.causes import ToolsCause

from .answer import MALFORMED, GroundTruth, ParsedAnswer, ToolCall
from .correctness import MAX_CORRECTNESS, strict_correctness

# Looking up a member takes Python 3.11 a fifth of a microsecond, as much as the rest of this.
_EXTRA_CALL, _MISSING_CALL = ToolsCause.EXTRA_CALL, ToolsCause.MISSING_CALL
_WRONG_TOOL, _WRONG_ARGUMENTS = ToolsCause.WRONG_TOOL, ToolsCause.WRONG_ARGUMENTS


def cause_of(
    answer: ParsedAnswer,
    truth: GroundTruth,
    *,
    right_format: bool,
    right_calls: bool,
    full_length: bool,
    is_strict: bool,
) -> ToolsCause | None:
    """Return why a reward is not the highest; None if it is.

    Args:
        right_format: Whether the reward of the format is the highest.
        right_calls: Whether the correctness is the highest.
        full_length: Whether the reward of the length is, or there is none.
        is_strict: Whether the correctness is that of `strict`.
    """
    if right_format and right_calls:
        return None if full_length else ToolsCause.SHORT_THINKING
    if answer.fault or MALFORMED in answer.calls:
        return answer.fault or ToolsCause.MALFORMED_CALL
    if not right_format:
        # The tags of a call are missing or superfluous because the call is.
        is_clean = not truth.has_tags or (answer.is_clean and answer.blocks)
        if is_clean and bool(answer.calls) != bool(truth.calls):
            return _EXTRA_CALL if answer.calls else _MISSING_CALL
        return ToolsCause.FORMAT
    is_right = not is_strict and strict_correctness(answer.calls, truth.calls) == MAX_CORRECTNESS
    return ToolsCause.CALL_FORM if is_right else _cause_of_calls(answer.calls, truth.calls)


def _cause_of_calls(calls: Sequence[ToolCall], truth: Sequence[ToolCall]) -> ToolsCause:
    # Sets, as counting takes longer than the rest of an item.
    given, wanted = {call.name for call in calls}, {call.name for call in truth}
    if given == wanted:
        if len(calls) == len(truth):
            return _WRONG_ARGUMENTS
        return _EXTRA_CALL if len(calls) > len(truth) else _MISSING_CALL
    if given > wanted:
        return _EXTRA_CALL
    return _MISSING_CALL if given < wanted else _WRONG_TOOL
