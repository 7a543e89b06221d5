"""Readouts: what a model generates, and how its completions become a score.

`LabelReadout` takes the exact log-probabilities of its labels, without sampling. It normalizes over
them, and abstains where they have little probability. Of some models they always have little
(e^-26, measured by Large-Reward-Models): set 0 for those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rewardfleet.text import read
from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.judges.labels import (
    after_thoughts,
    label_probabilities,
    score_interval,
    word_of,
)
from rewardfleet_server.video.judges.score_parser import PARSER_VERSION, Scale, parse_score
from rewardfleet_server.video.prompts import Prompt

from . import Completion, GenerationParams

#: The score of each label of the readout `probability`.
YES_AND_NO = {"yes": 1.0, "no": 0.0}
_MAX_UNCERTAINTY = 0.1  #: the widest interval of scores with which a judge does not abstain
_NUMBER_TOKENS = 8  #: enough tokens for the longest number and the end token


@dataclass(frozen=True)
class TextReadout:
    """Reads a score from text."""

    prompt: Prompt  #: used if neither settings nor request give one
    numbers_only: bool = False  #: restrict the text to a whole number from 0 to 100
    strict_tags: bool = False  #: abstain unless `<answer>` follows a closed `<think>`
    detail: str | None = None  #: name of a detail that repeats the score, or None

    @property
    def name(self) -> str:
        """With the version, for provenance."""
        return f"{'constrained' if self.numbers_only else 'text'} v{PARSER_VERSION}"

    def generation_params(self, sampling: GenerationParams, n: int) -> GenerationParams:
        """Return what to generate."""
        if self.numbers_only:
            return replace(sampling, max_tokens=_NUMBER_TOKENS, n=n, numbers_only=True)
        return replace(sampling, n=n)

    def read(self, completions: Sequence[Completion], mode: Scale) -> Judgment:
        """Return the mean of the scores that can be read; abstain if fewer than half can."""
        readings = [self._read(completion, mode) for completion in completions]
        scores = [score for score, _ in readings if score is not None]
        output = "\n---\n".join(text for _, text in readings)
        if 2 * len(scores) < len(readings) or not scores:
            return Judgment(None, output, cause=cause_of_abstention(completions))
        mean = math.fsum(scores) / len(scores)
        details = {self.detail: mean} if self.detail else {}
        if len(completions) > 1:
            spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
            details |= {"spread": spread, "samples": float(len(scores))}
        return Judgment(mean, output, details)

    def _read(self, completion: Completion, mode: Scale) -> tuple[float | None, str]:
        text = completion.text
        turn = read(text).last
        if self.strict_tags and not (turn.thoughts and "<answer>" in turn.answer):
            cut = ", cut by the token limit" if completion.truncated else ""
            return None, f"{text}\n[no <answer> after a closed <think>{cut}]"
        parsed = parse_score(text, mode=mode, truncated=completion.truncated)
        return parsed.score, text if parsed.score is not None else f"{text}\n[{parsed.reason}]"


@dataclass(frozen=True)
class LabelReadout:
    """Reads a score from the probabilities of labels."""

    name: str  #: with the version, for provenance
    prompt: Prompt  #: used if neither settings nor request give one
    labels: Mapping[str, float]  #: the score of each label, in [0, 1]; 0 and 1 are among them
    #: The tokens that are one of them, by their texts; none where engines return the likeliest.
    tokens: Mapping[str, int]
    min_mass: float = 0.0  #: abstain where all labels together have less probability
    #: A detail with the log-probability of the score 1.0, of a text that a label continues.
    detail: str | None = None

    def generation_params(self, sampling: GenerationParams, n: int) -> GenerationParams:
        del n  # the probabilities are the same every time
        return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, labels=self.tokens)

    def read(self, completions: Sequence[Completion], mode: Scale) -> Judgment:
        """Return the expected score; see `checked_probabilities` for errors.

        If tokens are unknown, it is the middle of an interval, which must not be too wide.
        """
        del mode
        (answer,) = completions
        positions = answer.positions if self.detail else after_thoughts(answer.positions)
        if answer.truncated and not self.detail and not any(map(word_of, positions)):
            text = f"{answer.text}\n[cut before the first word behind thoughts and marks]"
            return Judgment(None, text, cause=VideoCause.ANSWER_CUT)
        probabilities, unseen = label_probabilities(positions, self.labels, self.tokens)
        mass = math.fsum(probabilities.values())
        low, high = score_interval(probabilities, unseen)
        details = {"label_mass": mass, **({"uncertainty": high - low} if unseen else {})}
        if self.detail and probabilities[1.0]:
            details[self.detail] = math.log(probabilities[1.0])
        if unseen and high - low > _MAX_UNCERTAINTY:
            reason = f"the score lies between {low:.3f} and {high:.3f}: too much is unknown"
        elif mass < self.min_mass or not mass:
            reason = f"the labels have {mass:.2g} of the probability, less than {self.min_mass:g}"
        else:
            return Judgment((low + high) / 2, answer.text, details)
        return Judgment(None, f"{answer.text}\n[{reason}]", details)


Readout = TextReadout | LabelReadout  #: one way to get a score from a model


def cause_of_abstention(completions: Sequence[Completion]) -> VideoCause | None:
    """Return why no score can be read: the token limit, if it cut one of the completions."""
    return VideoCause.ANSWER_CUT if any(each.truncated for each in completions) else None
