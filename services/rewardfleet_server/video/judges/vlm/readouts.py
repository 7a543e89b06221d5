"""Readouts: what a model generates, and how its completions become a score.

Those below are of any model, see `READOUTS` in `families/qwen.py`; published models have their own.

`probability` and `rubric` take the exact log-probabilities of their labels; they need one token and
no sampling. They normalize over their labels, and abstain where these have little probability. Of
some models they always have little (e^-26, measured by Large-Reward-Models): set 0 for those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewardfleet.text import read
from rewardfleet.wire.causes import VideoCause
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.judges.label_mass import checked_probabilities
from rewardfleet_server.video.judges.score_parser import PARSER_VERSION, Scale, parse_score
from rewardfleet_server.video.prompts import PERCENTAGE, RUBRIC, YES_OR_NO, Prompt

from . import Completion, GenerationParams
from .checkpoint import Checkpoint

#: Enough tokens for the longest number and the end token.
_NUMBER_TOKENS = 8


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
        """Return the mean of the scores that can be read; abstain if fewer than half can.

        Args:
            completions: One or more.
            mode: What a number without a unit means.
        """
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
    """Reads a score from the probabilities of labels at the first token."""

    name: str  #: with the version, for provenance
    prompt: Prompt  #: used if neither settings nor request give one
    #: The token ids of each label, by the label's value in [0, 1].
    labels: Mapping[float, tuple[int, ...]]
    #: Name of a detail with the log-probability of the label 1.0, or None.
    detail: str | None = None
    min_mass: float = 0.0  #: abstain where all labels together have less probability

    def generation_params(self, sampling: GenerationParams, n: int) -> GenerationParams:
        del sampling, n  # the probabilities are the same every time
        tokens = tuple(token for tokens in self.labels.values() for token in tokens)
        return GenerationParams(max_tokens=1, temperature=0.0, top_p=1.0, labels=tokens)

    def read(self, completions: Sequence[Completion], mode: Scale) -> Judgment:
        """Return the expectation of the labels' values; see `checked_probabilities` for errors."""
        del mode
        (completion,) = completions
        checked_probabilities(completion.logprobs.values())  # of labels, and of the first token
        logprobs = {
            value: float(np.logaddexp.reduce([completion.logprobs[token] for token in tokens]))
            for value, tokens in self.labels.items()
        }
        total = float(np.logaddexp.reduce([*logprobs.values()]))
        mass = math.exp(min(total, 0.0))
        details = {"label_mass": mass}
        if not math.isfinite(total):
            return Judgment(None, f"{completion.text}\n[no label has any probability]", details)
        score = math.fsum(value * math.exp(logprob - total) for value, logprob in logprobs.items())
        if self.detail and math.isfinite(logprobs[1.0]):
            details[self.detail] = logprobs[1.0]
        if mass < self.min_mass:
            reason = f"the labels have {mass:.2g} of the probability, less than {self.min_mass:g}"
            return Judgment(None, f"{completion.text}\n[{reason}]", details)
        return Judgment(min(max(score, 0.0), 1.0), completion.text, details)


#: One way to get a score from a model.
Readout = TextReadout | LabelReadout


def cause_of_abstention(completions: Sequence[Completion]) -> VideoCause | None:
    """Return why no score can be read: the token limit, if it cut one of the completions."""
    return VideoCause.ANSWER_CUT if any(each.truncated for each in completions) else None


def readouts(
    checkpoint: Checkpoint, percentage: Prompt = PERCENTAGE, *, min_mass: float = 0.0
) -> dict[str, Readout]:
    """Return the readouts that a model supports, by name; see `label_tokens` for errors.

    Args:
        percentage: The prompt that asks for a number from 0 to 100.
        min_mass: The least probability of all labels together.
    """

    def label_readout(name: str, prompt: Prompt, words: Mapping[float, Sequence[str]]) -> Readout:
        marks = ("", " ", "\n", "**", '"')
        spellings = {value: [m + each for each in words[value] for m in marks] for value in words}
        tokens = label_tokens(spellings, checkpoint)
        return LabelReadout(f"{name} v2, mass {min_mass:g}", prompt, tokens, min_mass=min_mass)

    yes_and_no = {1.0: ("Yes", "yes"), 0.0: ("No", "no")}
    grades = {(grade - 1) / 4: (str(grade),) for grade in range(1, 6)}
    return {
        "text": TextReadout(percentage),
        "constrained": TextReadout(percentage, numbers_only=True),
        "probability": label_readout("probability", YES_OR_NO, yes_and_no),
        "rubric": label_readout("rubric", RUBRIC, grades),
    }


def label_tokens(
    labels: Mapping[float, Sequence[str]], checkpoint: Checkpoint
) -> dict[float, tuple[int, ...]]:
    """Return the token ids of each label, by its value.

    Args:
        labels: The spellings of each label, by its value.

    Raises:
        ValueError: The tokenizer has no single token for a label.
    """
    tokens = {value: checkpoint.tokens(spellings) for value, spellings in labels.items()}
    for value, found in tokens.items():
        if not found:
            raise ValueError(
                f"--model-path {checkpoint.path}: its tokenizer has no single token for "
                f"{' or '.join(map(repr, labels[value]))}"
            )
    return tokens
