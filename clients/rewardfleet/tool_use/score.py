"""The reward of one answer, without a budget: a pure function."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rewardfleet.wire.causes import ToolsCause
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import Family, ToolDescription, ToolsOptions

from . import toolrl
from .answer import MALFORMED, GroundTruth, ParsedAnswer, ToolCall, parse_answer, parse_ground_truth
from .correctness import MAX_CORRECTNESS, strict_correctness, strict_format
from .usage import Usage, cost_of, usage_of

# Looking up a member takes Python 3.11 a fifth of a microsecond, as much as the rest of this.
_EXTRA_CALL, _MISSING_CALL = ToolsCause.EXTRA_CALL, ToolsCause.MISSING_CALL
_WRONG_TOOL, _WRONG_ARGUMENTS = ToolsCause.WRONG_TOOL, ToolsCause.WRONG_ARGUMENTS
#: A scheduled reward may be below its maximum by rounding.
_ROUNDING = 1e-9


class ToolUseReward(NamedTuple):
    """The reward of an answer."""

    format: float  #: in [0, 1]
    correctness: float  #: in [-3, 3]
    length: float  #: in [0, 1]; 0 without `with_length`
    cost: float  #: what the tools that it used cost, 0 or more
    usage: Usage  #: these tools
    cause: ToolsCause | None  #: why `task` is below its maximum, if it is
    answer: ParsedAnswer  #: as it was read

    @property
    def task(self) -> float:
        """The sum of format, correctness and length."""
        return self.format + self.correctness + self.length


def score_answer(
    response: str,
    ground_truth: str,
    options: ToolsOptions,
    *,
    step: int = 0,
    labels: Mapping[str, Family] | None = None,
    tools: Iterable[ToolDescription] = (),
    default_labels: Mapping[str, Family] | None = None,
) -> ToolUseReward:
    """Score an answer.

    Args:
        response: The answer; any text.
        ground_truth: A correct answer with `<think>`, `<tool_call>` and `<response>`, or the JSON
            of its calls.
        options: The variant, its options, families and costs.
        step: The step of the training run, for schedules.
        labels: Families of tools by name, which come before those of the options.
        tools: Descriptions of the available tools.
        default_labels: Families of tools that neither `labels` nor the options list.

    Raises:
        InvalidRequest: The ground truth is malformed, or is nothing that the variant compares.
    """
    truth = parse_ground_truth(ground_truth)
    answer = parse_answer(response, options, tools)
    calls: Sequence[ToolCall] = answer.calls
    if options.variant == "strict":
        think = answer.think
        format_reward = strict_format(answer, truth)
        correctness = strict_correctness(answer.calls, truth.calls)
        max_format, max_correctness = 1.0, MAX_CORRECTNESS
    elif any(call.has_choices for call in truth.calls):
        raise InvalidRequest("ground_truth: lists of allowed values need `variant: strict`")
    else:
        text = response.strip()
        think = toolrl.think_of(text)
        format_reward = toolrl.format_reward(text, truth, options, step)
        correctness = toolrl.correctness(text, truth, options, step)
        # What is paid for costs something, also where an executor would not look for calls.
        calls = [*(Counter(calls) | Counter(toolrl.calls_of(text))).elements()]
        _, max_format = toolrl.format_range(options, step)
        _, max_correctness = toolrl.correctness_range(options, step)
    length = toolrl.think_length(think, options, step) if options.with_length else 0.0
    cause = _cause_of(
        answer,
        truth,
        right_format=format_reward > max_format - _ROUNDING,
        right_calls=correctness > (max_correctness if truth.calls else 0.0) - _ROUNDING,
        full_length=length == 1.0 or not options.with_length,
        is_strict=options.variant == "strict",
    )
    usage = usage_of(calls, options, labels or {}, tools, default_labels or {})
    cost = cost_of(usage, options)
    return ToolUseReward(format_reward, correctness, length, cost, usage, cause, answer)


def _cause_of(
    answer: ParsedAnswer,
    truth: GroundTruth,
    *,
    right_format: bool,
    right_calls: bool,
    full_length: bool,
    is_strict: bool,
) -> ToolsCause | None:
    """Return why a reward is not the highest; None if its format, calls and length are."""
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
