"""The variant `strict` of format and correctness."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .answer import MALFORMED, GroundTruth, ParsedAnswer, ToolCall, by_name, is_same, with_type

#: The range of the correctness.
MAX_CORRECTNESS = 3.0
#: What a superfluous call costs, as a share of its weight.
_SUPERFLUOUS_SHARE = 0.5
#: Of calls with the same similarity, the heaviest is matched, whatever their order.
_PREFERENCE_OF_WEIGHT = 1e-9


def strict_format(answer: ParsedAnswer, truth: GroundTruth) -> float:
    """Return 1 if an answer has the tags of the ground truth, in order, else 0.

    White space between and inside of the tags does not matter. Nothing may be outside of them, none
    may be nested, and all tool calls must be parsable, in any dialect. If the ground truth has no
    tags, an answer needs parsable calls, or a text outside of thoughts if no call is wanted.
    """
    if not truth.has_tags:
        is_right = bool(answer.calls) == bool(truth.calls) and not answer.is_silent
        return float(is_right and MALFORMED not in answer.calls)
    return float(answer.is_clean and answer.blocks == truth.blocks)


def strict_correctness(calls: Sequence[ToolCall], truth: Sequence[ToolCall]) -> float:
    """Compare the calls of an answer with those of the ground truth.

    Each call has a weight of 2 plus the number of its parameters. S is the similarity of the best
    one-to-one matching of calls with the same name: 1 for the name, the Jaccard index of the
    parameters' names, and 1 for each equal value. W is the weight of the ground truth, E that of
    the calls that match none. The result is -3 + 6 S / (W + E / 2), a Tversky index. If the ground
    truth has no calls, it is 0 without calls, and -3 E / (2 + E) with some.

    Returns:
        A number in [-3, 3]; 3 only if the calls are those of the ground truth, in any order.
    """
    if calls == truth and truth:  # in the same order, as is usual late in training
        return MAX_CORRECTNESS
    total = sum([call.weight for call in calls])
    if not truth:
        return MAX_CORRECTNESS * (1 / (1 + _SUPERFLUOUS_SHARE * total) - 1)
    weight = sum([call.weight for call in truth])
    similarity, matched = 0.0, 0
    given = by_name(calls)
    for name, wanted in by_name(truth).items():
        if name in given:
            similarity_of_name, matched_of_name = _best_matching(wanted, given[name])
            similarity += similarity_of_name
            matched += matched_of_name
    share = similarity / (weight + _SUPERFLUOUS_SHARE * (total - matched))
    return -MAX_CORRECTNESS + 2 * MAX_CORRECTNESS * share


def _best_matching(wanted: list[ToolCall], given: list[ToolCall]) -> tuple[float, int]:
    """Return the similarity of the best matching, and the weight of the given calls in it."""
    if len(wanted) == len(given) == 1:
        return _similarity(wanted[0], given[0]), given[0].weight
    # More copies of a call than there are wanted calls cannot be matched.
    copies = {call: min(count, len(wanted)) for call, count in Counter(given).items()}
    distinct = [call for call, count in copies.items() for _ in range(count)]
    rows = {call: [_similarity(call, each) for each in copies] for call in set(wanted)}
    counts = list(copies.values())
    table = np.repeat(np.array([rows[call] for call in wanted]), counts, axis=1)
    weights = np.array([call.weight for call in distinct])
    preference = table + _PREFERENCE_OF_WEIGHT * weights / weights.max()
    if len(wanted) == 1:
        column = int(preference[0].argmax())
        return float(table[0, column]), distinct[column].weight
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - an extra of the server

    lines, columns = linear_sum_assignment(preference, maximize=True)
    return float(table[lines, columns].sum()), int(weights[columns].sum())


def _similarity(wanted: ToolCall, given: ToolCall) -> float:
    """Return the similarity of two calls with the same name, from 1 to the weight of `wanted`."""
    if wanted == given:
        return float(wanted.weight)
    keys, equal = given.keys, len(wanted.parameters & given.parameters)
    if wanted.has_choices:
        keys = keys | {name for name, choices in wanted.parameters if "" in choices}
        found = dict(given.parameters)
        equal = sum(_is_one_of(found.get(name, ""), each) for name, each in wanted.parameters)
    shared = len(wanted.keys & keys)
    if equal < shared and not wanted.has_choices:
        found = dict(given.parameters)
        others = wanted.parameters - given.parameters
        equal += sum([n in found and is_same(found[n], each) for n, each in others])
    union = len(wanted.keys) + len(keys) - shared
    return 1 + (shared / union if union else 1.0) + equal


def _is_one_of(value: Any, choices: Any) -> bool:
    """Return whether a value is one of some choices; keys of objects have choices of their own."""
    match choices:
        case ("list", *items):
            return any(_is_choice(value, each) for each in items)
    return _is_choice(value, choices)


def _is_choice(value: Any, choice: Any) -> bool:
    match choice, value if isinstance(choice, str) else with_type(value):
        case ("dict", choices), ("dict", pairs):
            by_name, found = dict(choices), dict(pairs)
            is_known = found.keys() <= by_name.keys()
            return is_known and all(_is_one_of(found.get(n, ""), by_name[n]) for n in by_name)
        case ("list", *items), ("list", *values):
            return len(items) == len(values) and all(map(_is_choice, values, items))
    return is_same(choice, value)
