"""What every service answers: a score, or the reason why there is none."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, JsonValue, model_validator

from .errors import Abstained, Problem, RewardFleetError

MAX_BATCH_ITEMS = 256
MAX_NAME = 200
#: A part of a JSON Schema, where a model adds rules that its fields do not have.
JsonSchema = dict[str, JsonValue]
#: Names of runs, and of groups, episodes and parts in them.
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
MAX_STEP = 2**53
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]


#: The fields that say what an item is part of, and not what is scored; see `Request.labels`.
LABELS = frozenset({"run", "step", "uid", "attempt"})
_NAMED: Any = {"default": None, "min_length": 1, "max_length": MAX_NAME}
RUN_LABEL: Any = Field(**_NAMED, description="Training run, for the score log.")
STEP_LABEL: Any = Field(None, description="Step of the training run, for the score log.")
UID_LABEL: Any = Field(**_NAMED, description="Name of the item, for the score log.")


def of_types(**types: str) -> JsonSchema:
    """Return the schema of objects whose fields have these types; `null` ones may be missing."""
    properties: JsonValue = {name: {"type": each} for name, each in types.items()}
    required: JsonValue = [name for name, each in types.items() if each != "null"]
    return {"properties": properties, "required": required}


def having(name: str, value: str | bool) -> JsonSchema:
    """Return the schema of objects whose field has a value."""
    return {"properties": {name: {"const": value}}, "required": [name]}


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, str | int | None):
        return value
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("NaN and infinities are not JSON") from None
    return value


#: A JSON value without NaN and infinities, which pydantic would accept.
FiniteJson = Annotated[JsonValue, AfterValidator(_finite)]


class Request(
    BaseModel,
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    val_json_bytes="base64",
    ser_json_bytes="base64",
    ser_json_inf_nan="constants",  # in rows of data sets; null would be another value
):
    """The base of request models. An unknown field is refused, and the error names it.

    Bytes are sent as base64 text (RFC 4648, either alphabet), strictly checked.
    """

    @property
    def labels(self) -> frozenset[str]:
        """Those of `LABELS` on which its score does not depend, but for the state of a run."""
        return LABELS


class ForeignRequest(BaseModel, extra="ignore", frozen=True, allow_inf_nan=False):
    """The base of requests in formats of other projects. Unknown fields are ignored, as there."""


class Response(BaseModel, extra="ignore", allow_inf_nan=False):
    """The base of response models. Unknown fields, of newer servers, are ignored."""


class Status(StrEnum):
    """Whether there is a score."""

    OK = "ok"
    ABSTAINED = "abstained"  #: no usable verdict of the backend, or no answer to be scored
    ERROR = "error"  #: a failure; in batches only, as a single request fails with an HTTP error


class Timing(Response):
    """The time that each stage took, in milliseconds."""

    queue: float = Field(0.0, description="Waiting for a permit to use the backend.")
    decode: float = Field(0.0, description="Reading and decoding the input.")
    backend: float = Field(0.0, description="The judgment itself.")
    total: float = Field(0.0, description="From the request's headers to this answer.")


_STATUSES: JsonSchema = {
    "oneOf": [
        {"allOf": [having("status", "ok"), of_types(score="number", error="null")]},
        {"allOf": [having("status", "abstained"), of_types(score="null", error="null")]},
        {"allOf": [having("status", "error"), of_types(score="null", error="object")]},
    ]
}


class Score(Response, json_schema_extra=_STATUSES):
    """One answer. `score` is null unless `status` is `ok`: a missing reward is never 0.0."""

    score: FiniteFloat | None = Field(description="The reward, or null if there is none.")
    status: Status = Field(
        description="ok: there is a score. abstained: there is no usable verdict, or no answer. "
        "error: a failure; in batches only, as a single request fails with an HTTP error."
    )
    components: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="Signed addends by name, whose sum is the score."
    )
    details: dict[str, FiniteFloat | str] = Field(
        default_factory=dict, description="Other figures by name, which are no addends."
    )
    backend: str = Field("", description="The judge or sandbox that computed the score.")
    cached: bool = Field(False, description="Whether the score came from the cache.")
    timing_ms: Timing = Field(default_factory=Timing, description="Milliseconds of each stage.")
    provenance: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Model, prompt, sampling and versions that the score came from. In a batch, "
        "provenance that all items of a backend share is reported once, next to `results`.",
    )
    cause: str | None = Field(
        None,
        description="Why the score is below its maximum, or missing; see docs/reference/causes.md. "
        "Of an error, its kind. Null: there is nothing to explain.",
    )
    error: Problem | None = Field(None, description="Why there is no score (`status: error`).")

    @property
    def numbers(self) -> dict[str, float]:
        """What trainers log: the components by their names, and numbers as `details/NAME`."""
        details = {f"details/{n}": v for n, v in self.details.items() if isinstance(v, float)}
        return {**self.components, **details}

    @model_validator(mode="after")
    def _score_matches_status(self) -> Self:
        if (self.score is not None) != (self.status is Status.OK):
            raise ValueError("`score` is a number if and only if `status` is `ok`")
        if (self.error is not None) != (self.status is Status.ERROR):
            raise ValueError("`error` is given if and only if `status` is `error`")
        if self.error is not None and self.cause is None:
            self.cause = self.error.kind
        return self


def figures_of(score: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a score, given as fields. In older logs, all of them are components."""
    return {**(score.get("components") or {}), **(score.get("details") or {})}


def reward_of(service: str, score: Mapping[str, Any]) -> float | None:
    """Return the reward of a score, given as fields, before any normalization of episodes."""
    reward = (score.get("details") or {}).get("reward") if service == "episode" else None
    given: float | None = score.get("score")
    return given if given is None or reward is None else reward


def abstained(score: Score) -> Abstained:
    """Return the error that an abstention is where it counts as a failure."""
    text = getattr(score, "model_output", "") or score.cause or ""
    error = Abstained(f"judge {score.backend} abstained: {text[:200]}")
    error.score = score
    return error


class Health(Response, extra="allow"):
    """The response of `GET /readyz` of a service that can score, with fields of the service."""

    status: str = Field(description="`ready`.")


ItemT = TypeVar("ItemT")
ScoreT = TypeVar("ScoreT", bound=Score)


def failed(error: RewardFleetError, score_type: type[ScoreT]) -> ScoreT:
    """Return what an item of a batch has in place of a score."""
    return score_type(score=None, status=Status.ERROR, error=error.problem())


class BatchRequest(Request, Generic[ItemT]):
    """Several items at once. An item that fails does not fail the others."""

    items: list[ItemT] = Field(min_length=1, max_length=MAX_BATCH_ITEMS, description="The items.")


class BatchResponse(Response, Generic[ScoreT]):
    """One result per item, in the same order."""

    results: list[ScoreT] = Field(description="One per item, in the order of the items.")
    provenance: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="By backend: the provenance that all its results share."
    )
