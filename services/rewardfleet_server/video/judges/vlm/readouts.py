"""What a model is asked for, and how its answers become a score.

    text         the model's words, read by the strict readout of `readout.py`
    constrained  likewise, but the words can only be a whole number from 0 to 100
    probability  P(yes) / (P(yes) + P(no)) of the answer's first token
    rubric       the expectation over the labels 1 to 5 of the first token, spread over [0, 1]

The last two take the exact log-probabilities of their labels and need one token and no sampling.
They are always a ratio: by themselves such probabilities are often as small as e^-26, so that
their exponentials would say 0 (measured by Large-Reward-Models).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.prompts import PERCENTAGE, RUBRIC, YES_OR_NO, Prompt
from rewardfleet_server.video.score_parser import PARSER_VERSION, ScoreMode, parse_score

from . import Answer, Ask
from .checkpoint import Checkpoint

#: Tokens of the longest number, and of the end.
_NUMBER_TOKENS = 8


@dataclass(frozen=True)
class Sampling:
    """How the model speaks, where it speaks freely."""

    temperature: float
    top_p: float
    max_tokens: int


class Readout(Protocol):
    """One way to a score.

    Attributes:
        name: With the version, for provenance.
        prompt: What to ask where the user does not say.
    """

    @property
    def name(self) -> str: ...

    @property
    def prompt(self) -> Prompt: ...

    def ask(self, sampling: Sampling, n: int) -> Ask: ...

    def read(self, answers: Sequence[Answer], mode: ScoreMode) -> Judgment:
        """Make a judgment of all answers to one question; `mode` is for numbers without a unit."""


@dataclass(frozen=True)
class Text:
    """The model's words.

    Attributes:
        numbers_only: The words can only be a number.
        strict_tags: Nothing is read that does not stand in `<answer>` after a closed `<think>`.
        component: Name under which the score is told as well.
    """

    prompt: Prompt
    numbers_only: bool = False
    strict_tags: bool = False
    component: str | None = None

    @property
    def name(self) -> str:
        return f"{'constrained' if self.numbers_only else 'text'} v{PARSER_VERSION}"

    def ask(self, sampling: Sampling, n: int) -> Ask:
        return Ask(
            max_tokens=_NUMBER_TOKENS if self.numbers_only else sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            n=n,
            numbers_only=self.numbers_only,
        )

    def read(self, answers: Sequence[Answer], mode: ScoreMode) -> Judgment:
        """Take the mean of the answers that can be read; abstain where fewer than half can."""
        readings = [self._read(answer, mode) for answer in answers]
        scores = [score for score, _ in readings if score is not None]
        said = "\n---\n".join(text for _, text in readings)
        if 2 * len(scores) < len(readings) or not scores:
            return Judgment(None, said)
        mean = math.fsum(scores) / len(scores)
        components = {self.component: mean} if self.component else {}
        if len(answers) > 1:
            spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
            components |= {"spread": spread, "samples": float(len(scores))}
        return Judgment(mean, said, components)

    def _read(self, answer: Answer, mode: ScoreMode) -> tuple[float | None, str]:
        if self.strict_tags and not _answers_after_thought(answer.text):
            cut = ", cut by the token limit" if answer.truncated else ""
            return None, f"{answer.text}\n[no <answer> after a closed <think>{cut}]"
        reading = parse_score(answer.text, mode=mode, truncated=answer.truncated)
        if reading.score is None:
            return None, f"{answer.text}\n[{reading.reason}]"
        return reading.score, answer.text


@dataclass(frozen=True)
class Labels:
    """The first token, out of several.

    Attributes:
        labels: Each label's value, in [0, 1], and its tokens.
    """

    name: str
    prompt: Prompt
    labels: Mapping[float, tuple[int, ...]]

    def ask(self, sampling: Sampling, n: int) -> Ask:
        del sampling, n  # the probabilities are the same every time
        tokens = tuple(token for tokens in self.labels.values() for token in tokens)
        return Ask(max_tokens=1, temperature=0.0, top_p=1.0, labels=tokens)

    def read(self, answers: Sequence[Answer], mode: ScoreMode) -> Judgment:
        del mode
        (answer,) = answers
        logprobs = {
            value: _log_sum_exp([answer.logprobs[token] for token in tokens])
            for value, tokens in self.labels.items()
        }
        total = _log_sum_exp(list(logprobs.values()))
        if not math.isfinite(total):
            return Judgment(None, f"{answer.text}\n[no label has any probability]")
        score = math.fsum(value * math.exp(logprob - total) for value, logprob in logprobs.items())
        # How much of all probability the labels have: little means that the model would rather
        # have said something else.
        return Judgment(min(max(score, 0.0), 1.0), answer.text, {"labels_logprob": total})


def readouts(checkpoint: Checkpoint) -> dict[str, Readout]:
    """Return the readouts that a model has, by name.

    Raises:
        ValueError: Its tokenizer has no single token for a label.
    """
    yes_and_no = {1.0: ("Yes", "yes", " Yes", " yes"), 0.0: ("No", "no", " No", " no")}
    grades = {(grade - 1) / 4: (str(grade), f" {grade}") for grade in range(1, 6)}
    return {
        "text": Text(PERCENTAGE),
        "constrained": Text(PERCENTAGE, numbers_only=True),
        "probability": Labels("probability v1", YES_OR_NO, _tokens(yes_and_no, checkpoint)),
        "rubric": Labels("rubric v1", RUBRIC, _tokens(grades, checkpoint)),
    }


def _tokens(
    labels: Mapping[float, Sequence[str]], checkpoint: Checkpoint
) -> dict[float, tuple[int, ...]]:
    tokens = {value: checkpoint.tokens(spellings) for value, spellings in labels.items()}
    for value, found in tokens.items():
        if not found:
            raise ValueError(
                f"--model-path {checkpoint.path}: its tokenizer has no single token for "
                f"{' or '.join(map(repr, labels[value]))}"
            )
    return tokens


def _answers_after_thought(text: str) -> bool:
    """Whether an `<answer>` begins after a `<think>` that was closed."""
    thought = text.find("<think>")
    closed = text.find("</think>", thought)
    return thought >= 0 and closed >= 0 and text.find("<answer>", closed) >= 0


def _log_sum_exp(logs: Sequence[float]) -> float:
    most = max(logs)
    if not math.isfinite(most):
        return most
    return most + math.log(math.fsum(math.exp(log - most) for log in logs))
