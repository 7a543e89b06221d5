"""The calibration of a judge: `rewardfleet calibrate` writes it, the video service applies it."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, JsonValue, NonNegativeInt, model_validator

from .video import FrameCount, MaxPixels

#: What a judge's provenance has that its scores are not bound to: versions of software, the
#: hardware, and what differs between clips or is the calibration itself.
_NOT_BOUND = {"service", "engine", "device", "frames", "shown", "calibration"}
BOUND_FIELDS = ("nframes", "max_pixels", "backend_kwargs")
#: Raw scores are at least this far from 0 and 1 before their logit is taken.
_MARGIN = 1e-4

#: Tasks of a distribution, at most: each has metrics of its own.
MOST_TASKS = 50

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Count = Annotated[NonNegativeInt, Field(le=10**9)]


class _Part(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """The base of all parts of the file."""


class IsotonicMap(_Part):
    """A map by isotonic regression: linear between its points, constant beyond them."""

    kind: Literal["isotonic"]
    scores: list[Share] = Field(min_length=1, description="Raw scores, increasing.")
    values: list[Share] = Field(min_length=1, description="Their values, none below the one before")

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if len(self.scores) != len(self.values) or self.scores != sorted({*self.scores}):
            raise ValueError("scores: give increasing numbers, one for each of `values`")
        if self.values != sorted(self.values):
            raise ValueError("values: none may be below the one before")
        return self

    def value(self, raw: float, task_text: str) -> float:
        """Return the probability of success at a raw score; tasks do not matter."""
        del task_text
        after = bisect_right(self.scores, raw)
        if after in {0, len(self.scores)}:
            return self.values[max(0, after - 1)]
        x, y = self.scores[after - 1 : after + 1], self.values[after - 1 : after + 1]
        # Between its points, also where rounding would leave them.
        return min(y[1], y[0] + (y[1] - y[0]) * (raw - x[0]) / (x[1] - x[0]))


class LogisticMap(_Part):
    """A logistic function of the raw score's logit, with an offset for each known task."""

    kind: Literal["platt", "per-task"]
    slope: FiniteFloat = Field(ge=0)
    intercept: FiniteFloat
    tasks: dict[str, FiniteFloat] = Field({}, description="Offsets by task; 0 for other tasks.")

    def value(self, raw: float, task_text: str) -> float:
        """Return the probability of success at a raw score."""
        x = self.intercept + self.slope * logit(raw) + self.tasks.get(task_key(task_text), 0.0)
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Threshold(_Part):
    """The threshold of a success, and what is known of it from labels that chose it."""

    value: Share = Field(description="A calibrated score of at least this is a success.")
    false_positive_rate: Annotated[FiniteFloat, Field(gt=0, lt=1)]
    confidence: Annotated[FiniteFloat, Field(gt=0, lt=1)]
    failures: int = Field(ge=1, description="Failures in the half that chose it.")
    accepted: int = Field(ge=0, description="Those at or above it.")
    successes: int = Field(ge=1)
    found: int = Field(ge=0, description="Successes at or above it.")


class Binding(_Part):
    """What scores must come from for the calibration to hold."""

    backend: str
    provenance: dict[str, JsonValue] = Field(description="Checkpoint, prompt, readout, sampling.")
    nframes: FrameCount
    max_pixels: MaxPixels
    backend_kwargs: dict[str, JsonValue]
    camera: str | None = Field(description="Its name; null if the labels name none.")
    frame_sizes: list[tuple[int, int]] = Field(
        description="Height and width of the frames that the judge saw; empty if it reads files."
    )


class LabelCounts(_Part):
    """How many labeled clips were in each bin of raw scores, and last how many abstained."""

    failures: list[Count] = Field(min_length=2)
    successes: list[Count] = Field(min_length=2)


class Distribution(_Part):
    """The raw scores of all labeled clips, which those of a service are compared with."""

    edges: list[Share] = Field(
        min_length=1, max_length=50, description="Between bins, increasing; each begins one."
    )
    overall: LabelCounts
    tasks: dict[str, LabelCounts] = Field(
        max_length=MOST_TASKS, description="Of tasks with enough labels, by their key."
    )

    @model_validator(mode="after")
    def _has_a_count_for_each_bin(self) -> Self:
        if self.edges != sorted({*self.edges}):
            raise ValueError("edges: give increasing numbers")
        counts, size = (self.overall, *self.tasks.values()), len(self.edges) + 2
        if any({len(each.failures), len(each.successes)} != {size} for each in counts):
            raise ValueError("give a count for each bin, and one of abstentions")
        return self

    def place(self, raw: float | None) -> int:
        """Return where a raw score, or None for an abstention, is counted."""
        return place_of(raw, self.edges)


class Calibration(_Part):
    """A map from the scores of one judge to probabilities of success, and a threshold."""

    #: Files of the first format have no distribution.
    format: Literal["rewardfleet calibration 1", "rewardfleet calibration 2"]
    binding: Binding
    map: Annotated[IsotonicMap | LogisticMap, Field(discriminator="kind")]
    threshold: Threshold
    #: What was measured on the half that the map was not fitted to.
    checked: dict[str, JsonValue]
    distribution: Distribution | None = None


def place_of(raw: float | None, edges: Sequence[float]) -> int:
    """Return in which bin between edges a raw score is; None, an abstention, is after the last."""
    return len(edges) + 1 if raw is None else bisect_right(edges, raw)


def logit(score: float) -> float:
    """Return the logit of a score, which is kept away from 0 and 1."""
    kept = min(max(score, _MARGIN), 1 - _MARGIN)
    return math.log(kept / (1 - kept))


def task_key(task_text: str) -> str:
    """Return the key of a task: case and spaces do not matter."""
    return " ".join(task_text.casefold().split())


def bound_provenance(provenance: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the part of a judge's provenance that a calibration is bound to."""
    return {name: value for name, value in provenance.items() if name not in _NOT_BOUND}


def bound_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that a calibration is bound to, as they change its score."""
    kwargs = request["backend_kwargs"]
    options = {name: each for name, each in kwargs.items() if name != "curve"}
    return {**{name: request[name] for name in BOUND_FIELDS}, "backend_kwargs": options}
