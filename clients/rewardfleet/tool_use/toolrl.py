"""The variant `toolrl`: the reward of ToolRL (arXiv 2504.13958) as published, with its faults.

Its environment variables are options: `REFINEDREWARD` is `refined_reward`, and so on.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rewardfleet.wire.tools import ToolsOptions

from .answer import GroundTruth, ToolCall, call_of

#: Steps after which a scheduled reward has its final range, and a scheduled length its final value.
_REWARD_STEPS, _LENGTH_STEPS = 150, 105
#: The step at which `max1_step30_max3` changes.
_STEP_OF_MAX3 = 30

#: What follows the thoughts, in this order.
_FORMS = {
    "tool_call": r"\n<tool_call>\n.*?\n</tool_call>",
    "response": r"\n<response>.*?</response>",
}


def format_reward(text: str, truth: GroundTruth, options: ToolsOptions, step: int) -> float:
    """Return the reward of the format: the highest value if the tags are those expected.

    The range is [0, 1]; with `schedule_reward` it narrows from [-2, 2] to [-1, 1] over 150 steps,
    and `max1_step30_max3` halves it from step 30 on.
    """
    low, high = format_range(options, step)
    tags = [tag for tag in _FORMS if tag in truth.blocks]
    # Counted first: then the expression takes linear time.
    is_expected = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in tags)
    form = r"<think>.*?</think>" + "".join(_FORMS[tag] for tag in tags)
    return high if is_expected and re.fullmatch(form, text, re.DOTALL) else low


def format_range(options: ToolsOptions, step: int) -> tuple[float, float]:
    """Return the lowest and the highest reward of the format."""
    low, high = 0.0, 0.5 if options.max1_step30_max3 and step >= _STEP_OF_MAX3 else 1.0
    if options.schedule_reward:
        high = max(2 - (2 - high) * step / _REWARD_STEPS, 1.0)
        low = min(-2 + 2 * step / _REWARD_STEPS, -1.0)
    return low, high


def correctness(text: str, truth: GroundTruth, options: ToolsOptions, step: int) -> float:
    """Return the reward of the tool calls, in [-3, 3]; 0 if the ground truth has none.

    `correct_max1` makes the range [-1, 1], `max1_step30_max3` divides it by 3 before step 30, and
    with `schedule_reward` it widens from [-2, 2] to [-3, 3] over 150 steps.
    """
    if "tool_call" not in truth.blocks:
        return 0.0
    low, high = correctness_range(options, step)
    try:
        points, maximum = _points(truth.raw_calls, _calls(text), options)
        return (high - low) * points / maximum + low
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return low  # as published: whatever is malformed


def correctness_range(options: ToolsOptions, step: int) -> tuple[float, float]:
    """Return the lowest and the highest reward of the tool calls."""
    high = 1.0 if options.correct_max1 else 3.0
    if options.max1_step30_max3 and step < _STEP_OF_MAX3:
        high /= 3
    low = -high
    if options.schedule_reward:
        low = max((low + 2) * step / _REWARD_STEPS - 2, -3.0)
        high = min((high - 2) * step / _REWARD_STEPS + 2, 3.0)
    return low, high


def _calls(text: str) -> list[Any]:
    """Return the calls of the first block: one JSON value per line."""
    if "</tool_call>" not in text:
        raise ValueError("no tool call")
    content = text.split("<tool_call>")[1].split("</tool_call>", maxsplit=1)[0].strip()
    return [json.loads(line) for line in content.split("\n")]


def calls_of(text: str) -> list[ToolCall]:
    """Return the calls that `correctness` compares, also those within `<think>`."""
    try:
        return [call_of(each) for each in _calls(text)]
    except (ValueError, IndexError, RecursionError):
        return []


def _points(
    truth: Sequence[Any], calls: Sequence[Any], options: ToolsOptions
) -> tuple[float, float]:
    """Return the points of the calls, and the most that can be reached."""
    if truth == calls:
        return 1.0, 1.0
    if options.coarse_reward:
        return 0.0, 1.0
    names = [call["name"] for call in calls]
    points = _match([call["name"] for call in truth], names, options)
    maximum = 1.0
    used: set[int] = set()
    for wanted in truth:
        parameters = wanted["parameters"]
        maximum += 1.0 if options.intermediate_reward else 1.0 + len(parameters)
        best, best_index = 0.0, -1
        for index, name in enumerate(names):
            if index in used or name != wanted["name"]:
                continue
            similarity = _similarity(wanted, calls[index], options)
            if similarity > best:
                best, best_index = similarity, index
        if best_index >= 0:
            used.add(best_index)
            points += best
    return points, maximum


def _similarity(wanted: Any, given: Any, options: ToolsOptions) -> float:
    if options.intermediate_reward:
        return float(wanted == given)
    expected, parameters = wanted["parameters"], given["parameters"]
    equal: int = sum(
        key in parameters and parameters[key] == value for key, value in expected.items()
    )
    if list(expected) == list(parameters.keys()):
        return 1.0 + equal
    if options.refined_reward:
        return 0.0 + equal
    shared = len(expected.keys() & parameters.keys())
    return shared / (len(expected) + len(parameters) - shared) + equal


def _match(wanted: list[Any], given: list[Any], options: ToolsOptions) -> float:
    """Return the Jaccard index of two lists of names, or whether they are equal."""
    if wanted == given:
        return 1.0
    if options.refined_reward or not wanted or not given:
        return 0.0
    shared = (Counter(wanted) & Counter(given)).total()
    return shared / (len(wanted) + len(given) - shared)


def think_of(text: str) -> str:
    """Return the text whose length is rewarded: after the last `<think>`."""
    if "<think>" not in text or "</think>" not in text:
        return ""
    return text.rpartition("<think>")[2].partition("</think>")[0]


def think_length(think: str, options: ToolsOptions, step: int) -> float:
    """Return the reward of the length of `<think>`: its words over 512, at most 1, in hundredths.

    With `schedule_length`, 512 becomes 384 at step 0, rising to 640 at step 105, and further.
    """
    words = 384 + 256 * step / _LENGTH_STEPS if options.schedule_length else 512
    return min(round(len(think.split()) / words, 2), 1.0)
