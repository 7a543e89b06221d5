"""Labels in answers: their probabilities, behind thoughts, white space and marks."""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from prometheus_client import Histogram
from pydantic import Field

from rewardfleet.text import read
from rewardfleet.wire.errors import BackendFailed

#: What a logarithm or a sum may be too large by, from rounding to 16 bits.
_TOLERANCE = 0.01
#: What may surround a label in its token, and before it; no control characters.
_MARKS = re.compile(r"(?:[^\w\ufffd\0-\x08\x0e-\x1f\x7f-\x9f]|_)+")
_PREFIXES = ("", " ", "\n", "**", '"')
#: What the setting `min_label_mass` is.
HELP = "The least probability of all labels together; with less, the judge abstains."
#: Of all judgments with the detail `label_mass`.
LABEL_MASS = Histogram(
    "rewardfleet_label_mass",
    "Probability, in [0, 1], of all labels of a judge together. Where it is small, the model would "
    "rather say something else.",
    ("backend",),
    registry=None,
    buckets=(0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1),
)


@dataclass(frozen=True)
class Token:
    token: str  #: its text
    logprob: float  #: its natural log-probability, at most 0


@dataclass(frozen=True)
class Position(Token):
    """The token of an answer at a position."""

    #: The most likely ones there, or those whose values were asked for.
    top_logprobs: Annotated[Sequence[Token], Field(min_length=1)]


def spellings(labels: Iterable[str]) -> list[str]:
    """Return the texts of tokens that are one of these labels."""
    cases = [case for each in labels for case in (each, each.capitalize(), each.upper())]
    return [prefix + case for case in dict.fromkeys(cases) for prefix in _PREFIXES]


def after_thoughts(positions: Sequence[Position]) -> Sequence[Position]:
    """Return the positions of the answer; none if the thoughts do not end."""
    text = "".join(position.token for position in positions)
    turn = read(text).last
    thoughts = text.find(turn.text) + turn.thoughts[-1].end if turn.thoughts else 0
    starts = itertools.accumulate((len(each.token) for each in positions), initial=0)
    return [each for each, start in zip(positions, starts, strict=False) if start >= thoughts]


def label_probabilities(
    positions: Sequence[Position], labels: Mapping[str, float], asked: Collection[str]
) -> tuple[dict[float, float], float]:
    """Return the probability of each label, by its score, and what the tokens leave unknown.

    A label has the summed probability of its spellings, which differ in case, white space and
    marks. It may follow tokens of nothing else. See `checked_probabilities` for errors.

    Args:
        labels: The score of each label, in lower case.
        asked: The tokens whose values were asked for: if they are there, nothing is unknown.
    """
    found = dict.fromkeys(labels.values(), 0.0)
    unseen, reached = 0.0, 1.0
    for position in positions:
        tokens = position.top_logprobs
        probabilities = checked_probabilities(each.logprob for each in tokens)
        for token, probability in zip(tokens, probabilities, strict=True):
            if (label := word_of(token)) in labels:
                found[labels[label]] += reached * probability
        if not asked or not {each.token for each in tokens}.issuperset(asked):
            unseen += reached * max(0.0, 1.0 - math.fsum(probabilities))
        reached *= checked_probabilities([position.logprob])[0]
        if word_of(position):
            break
    return found, unseen


def word_of(token: Token) -> str:
    """Return the text of a token without white space and marks, in lower case."""
    return _MARKS.sub("", token.token or "\ufffd").casefold()  # it is a part of a character


def score_interval(probabilities: Mapping[float, float], unseen: float) -> tuple[float, float]:
    """Return the least and the largest expected score in [0, 1], if 0 or 1 may be unseen."""
    mass = math.fsum(probabilities.values())
    if not mass and not unseen:
        return 0.0, 1.0
    low, high = (0.0 if probabilities[end] else unseen for end in (0.0, 1.0))
    total = math.fsum(score * each for score, each in probabilities.items())
    return total / (mass + low), min((total + high) / (mass + high), 1.0)


def checked_probabilities(logprobs: Iterable[float]) -> list[float]:
    """Return the probabilities of tokens at one position; BackendFailed for other values."""
    values = list(logprobs)
    if all(value <= _TOLERANCE for value in values):
        probabilities = [math.exp(min(value, 0.0)) for value in values]
        if math.fsum(probabilities) <= 1 + _TOLERANCE:
            return probabilities
    shown = ", ".join(f"{value:.3g}" for value in values[:3])
    raise BackendFailed(f"the model's values are no log-probabilities, such as logits: {shown}")
