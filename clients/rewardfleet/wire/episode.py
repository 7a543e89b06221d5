"""`POST /score`, `/score/batch`, `/groups/members` and `/temperatures` of the episode service.

The models check types and names. `rewardfleet.episodes.validate_batch` checks the numbers, so a
notebook and a caller over HTTP get the same errors.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from .causes import EpisodeCause, cause_field
from .errors import ErrorKind
from .run_state import ATTEMPT
from .score import JsonSchema, Name, Request, Response, Score, Step, Timing, having, of_types

MAX_EPISODES = 4096

#: Formulas of a reward; `rewardfleet.episodes.kinds.KINDS` computes them.
RewardKind = Literal[
    "success",
    "return",
    "reward_model",
    "efficiency",
    "hybrid",
    "visual",
    "objectives",
    "shaped",
    "discounted",
]
#: Objectives of the kind `objectives`; a larger value is better.
Objective = Literal["success", "efficiency", "smoothness", "low_energy", "short_path", "progress"]
Normalization = Literal["none", "length", "group_mean", "group_std", "leave_one_out", "running"]
DropReason = Literal["all_equal", "accuracy", "alone", "not_selected"]
Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]


#: The largest magnitude of numbers of episodes: the squares of larger ones may overflow.
MAX_MAGNITUDE = 1e100
_NUMBER: JsonSchema = {"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}
_COUNT: JsonSchema = {"minimum": 0, "maximum": MAX_MAGNITUDE}
_LIMIT: JsonSchema = {"minimum": 1 / MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}
_SHARE: JsonSchema = {"minimum": 0, "maximum": 1}
#: A number of an episode. `rewardfleet.episodes.validate_batch` checks the ranges.
Number = Annotated[FiniteFloat, Field(json_schema_extra=_NUMBER)]
Count = Annotated[FiniteFloat, Field(json_schema_extra=_COUNT)]
_Limit = Annotated[FiniteFloat, Field(json_schema_extra=_LIMIT)]
#: One per step. The check ends at the first wrong number: a message per number takes memory.
Vector = Annotated[list[Number], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
Matrix = Annotated[list[Vector], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
_TOKENS: JsonSchema = {"items": {"type": "integer", "minimum": 0}, "uniqueItems": True}
StepTokens = Annotated[list[int], Field(fail_fast=True, json_schema_extra=_TOKENS)]
#: Weights of objectives; negative to penalize.
Weight = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]


#: The fields that an episode of each kind must have; "a or b" is met by either.
REQUIRED_FIELDS: dict[RewardKind, tuple[str, ...]] = {
    "success": ("success",),
    "return": ("episode_reward or step_rewards",),
    "reward_model": ("reward_model_score",),
    "efficiency": ("success", "steps", "max_steps"),
    "hybrid": ("step_rewards", "step_token_ends", "episode_reward"),
    "visual": ("episode_reward or step_rewards", "visual_success"),
    "objectives": (),  # those of the weighted objectives
    "shaped": ("progress", "episode_reward or step_rewards or success"),
    "discounted": ("steps", "episode_reward or step_rewards or success"),
}


def _of_kind(kind: RewardKind) -> Iterator[JsonSchema]:
    """Yield the schemas of episodes of a kind, one for each choice of "a or b"."""
    for names in itertools.product(*(field.split(" or ") for field in REQUIRED_FIELDS[kind])):
        given: JsonSchema = {name: {"not": {"type": "null"}} for name in names}
        if kind == "visual":  # others ignore this field
            given["visual_success"] = {"anyOf": [{"type": "object"}, {"type": "number", **_SHARE}]}
        required = names if kind == "success" else ("kind", *names)  # the default
        yield {"properties": {"kind": {"const": kind}, **given}, "required": [*required]}


_KINDS = [each for kind in REQUIRED_FIELDS for each in _of_kind(kind)]


class EpisodeRequest(Request, json_schema_extra={"anyOf": [*_KINDS, having("masked", True)]}):
    """One episode of T steps: its `uid`, and the fields that its `kind` needs."""

    uid: Name = Field(description="Name of the episode, unique in its batch.")
    kind: RewardKind = Field("success", description="Formula of the reward; see docs/episodes.md.")
    group: Name | None = Field(None, description="Prompt or task that this is a sample of.")
    masked: bool = Field(
        False,
        description="The rollout has no valid outcome, e.g. since the simulator failed: it gets no "
        "score, and its group is computed without it.",
    )
    success: bool | Literal[0, 1] | None = Field(None, description="The task was completed.")
    steps: Count | None = Field(None, description="Steps taken; they may exceed `max_steps`.")
    max_steps: _Limit | None = Field(
        None, description="Step limit of the task, above 0, by which `steps` are divided."
    )
    episode_reward: Number | None = Field(None, description="Return from the environment.")
    step_rewards: Vector | None = Field(None, description="[T]: one per step.")
    step_token_ends: StepTokens | None = Field(
        None, description="[T]: index of the last token of each step, from 0, strictly rising."
    )
    reward_model_score: Number | None = Field(None, description="From the caller's reward model.")
    temperature: Count | None = Field(None, description="Sampling temperature, 0 or above.")
    actions: Matrix | None = Field(None, description="[T, A]: one action per step, A numbers each.")
    path: Matrix | None = Field(None, description="[T, D]: where the end effector is, in meters.")
    progress: Vector | None = Field(None, description="[T]: progress before a step, e.g. 0 to 1.")
    visual_success: FiniteFloat | Score | None = Field(
        None, description="A number in [0, 1], or the response of the video service."
    )


class FilterOptions(Request):
    """Rules for which episodes to train on. An episode that fails one has `keep: false`."""

    test_time_rl: bool = Field(False, description="Keep groups with equal rewards by default.")
    drop_all_equal: bool | None = Field(
        None,
        description="Dynamic sampling: drop groups whose rewards are all equal, and groups of one. "
        "Default: true, or false with `test_time_rl`.",
    )
    tolerance: FiniteFloat = Field(
        1e-3, ge=0, description="Rewards that differ by at most this are equal."
    )
    accuracy_bounds: tuple[Fraction, Fraction] | None = Field(
        None, description="Drop groups whose success rate is outside [low, high]."
    )
    select: Literal["efficient", "diverse"] | None = Field(
        None,
        description="Keep `select_count` members of each group: the successes with the fewest "
        "steps, or the trajectories furthest apart.",
    )
    select_count: int = Field(4, ge=1, description="Members of each group that `select` keeps.")
    final_attempt: bool = Field(False, description="Last round of resampling: keep everything.")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        low, high = self.accuracy_bounds or (0.0, 1.0)
        if low > high:
            raise ValueError(f"accuracy_bounds: give [low, high], not [{low:g}, {high:g}]")
        return self


class ClusterOptions(Request):
    """How similar trajectories of a group are found, for a majority vote."""

    over: Literal["actions", "path"] = Field(
        "actions", description="What is compared. path: if missing, the one commanded by actions."
    )
    distance: Literal["resampled", "dtw"] = Field(
        "resampled",
        description="resampled: point by point, after resampling to 32 points. "
        "dtw: dynamic time warping.",
    )
    threshold: FiniteFloat = Field(
        0.1,
        ge=0,
        description="Root mean square distance, in units of the data, up to which two trajectories "
        "are similar.",
    )


def _without(name: str, option: str, value: str) -> JsonSchema:
    """Return the schema of requests in which a field `name` does not have an option."""
    return {"properties": {name: {"properties": {option: {"not": {"const": value}}}}}}


_NOT_DIVERSE = _without("filter", "select", "diverse")
_NOT_RUNNING = _without("options", "normalize", "running")


class EpisodeOptions(
    Request, json_schema_extra={"anyOf": [of_types(clusters="object"), _NOT_DIVERSE]}
):
    """Options of a batch."""

    efficiency: Literal["reciprocal", "linear", "exponential", "group_best"] = Field(
        "reciprocal", description="Formula of the efficiency; see docs/episodes.md."
    )
    gamma: Fraction = Field(0.99, description="Discount per step, of `discounted`.")
    weights: Annotated[dict[Objective, Weight], Field(min_length=1)] = Field(
        {"success": 1.0, "efficiency": 1.0},
        description="Objectives of the kind `objectives`, and their weights.",
    )
    combine: Literal["sum", "gated", "normalized"] = Field(
        "sum",
        description="sum: weighted sum. gated: weighted sum times success. normalized: each "
        "objective is normalized within its group, then summed.",
    )
    normalize: Normalization = Field("none", description="Of the rewards, see docs/episodes.md.")
    filter: FilterOptions = Field(FilterOptions(), description="Which episodes to train on.")
    clusters: ClusterOptions | None = Field(
        None, description="Cluster the trajectories of each group; null: do not."
    )

    @model_validator(mode="after")
    def _diversity_needs_distances(self) -> Self:
        if self.filter.select == "diverse" and self.clusters is None:
            raise ValueError("filter.select: diverse needs `clusters`, which defines the distance")
        return self


class EpisodeBatchHeader(
    Request, json_schema_extra={"anyOf": [of_types(run="string", step="integer"), _NOT_RUNNING]}
):
    """The fields of a batch besides its items."""

    options: EpisodeOptions = Field(EpisodeOptions(), description="Options of the batch.")
    run: Name | None = Field(None, description="Training run; required by `normalize: running`.")
    step: Step | None = Field(None, description="Its step; required by `normalize: running`.")
    attempt: str | None = ATTEMPT

    @model_validator(mode="after")
    def _running_needs_a_run(self) -> Self:
        if self.options.normalize == "running" and (self.run is None or self.step is None):
            raise ValueError("normalize: running needs `run` and `step`")
        return self


class EpisodeBatchRequest(EpisodeBatchHeader):
    """A rollout batch with its groups. An invalid episode does not fail the others."""

    items: list[EpisodeRequest] = Field(
        min_length=1, max_length=MAX_EPISODES, description="The episodes, of any groups."
    )


class EpisodeScore(Score):
    """The score of one episode, and how to train on it."""

    cause: EpisodeCause | ErrorKind | str | None = cause_field()
    uid: str = Field("", description="The `uid` of the request.")
    keep: bool = Field(True, description="Train on this episode.")
    drop_reason: DropReason | str | None = Field(
        None,
        union_mode="left_to_right",
        description="Filter rule that set `keep` to false. Newer services may have further ones.",
    )
    cluster: int | None = Field(None, description="Number of its cluster within its group.")
    pseudo_label: Literal[0, 1] | None = Field(
        None, description="1 in the largest cluster, else 0."
    )
    step_rewards: list[FiniteFloat] | None = Field(
        None,
        description="[T], for `hybrid` and `shaped`: one per step; their sum is the score. Null if "
        "that is normalized.",
    )
    token_positions: list[int] | None = Field(
        None, description="[T]: token of each step reward; `step_token_ends` of the request."
    )


class GroupStats(Response):
    """Statistics of the scored members of a group, of their rewards before normalization."""

    group: str = Field(description="Name of the group.")
    size: int = Field(description="Number of members with a score.")
    mean: float = Field(description="Mean reward.")
    std: float | None = Field(None, description="Sample standard deviation; null for one member.")
    success_rate: float | None = Field(None, description="In [0, 1]; null if one has no `success`.")
    all_equal: bool = Field(description="All rewards are equal, within `filter.tolerance`.")
    clusters: int | None = Field(None, description="Number of clusters.")
    majority_ratio: float | None = Field(None, description="Fraction in the largest cluster.")
    diversity: float | None = Field(None, description="Mean distance between two members.")


class TemperatureStats(Response):
    """Statistics of the scored episodes that were sampled at one temperature."""

    temperature: str = Field(description="To the nearest 0.1; `2.0` is 2 and above.")
    episodes: int = Field(description="Number of episodes.")
    success_rate: float | None = Field(description="In [0, 1]; null if one has no `success`.")
    steps: float | None = Field(description="Mean number; null if an episode has no `steps`.")
    reward_mean: float = Field(description="Mean reward, before normalization.")
    reward_variance: float = Field(description="Population variance, before normalization.")


class RunningStats(Response):
    """Statistics of all rewards of a run so far, this batch included."""

    count: int = Field(description="Number of rewards.")
    mean: float = Field(description="Their mean.")
    variance: float = Field(description="Their population variance.")


class EpisodeBatchResponse(Response):
    """One result per item, in order, and statistics by group and temperature."""

    results: list[EpisodeScore] = Field(description="One per item, in the order of the items.")
    groups: list[GroupStats] = Field(
        default_factory=list, description="One per group, in the order of their first members."
    )
    temperatures: list[TemperatureStats] = Field(
        default_factory=list, description="One per temperature that occurs, rising."
    )
    running: RunningStats | None = Field(
        None, description="Statistics of the run; null without `normalize: running`."
    )
    provenance: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="The version of the service, for all results."
    )
    timing_ms: Timing = Field(default_factory=Timing, description="Milliseconds by stage.")


_IN_A_GROUP: JsonSchema = {"properties": {"item": of_types(group="string")}}


class GroupMemberRequest(Request, json_schema_extra={"allOf": [_IN_A_GROUP, _NOT_RUNNING]}):
    """One episode of a group that is collected member by member.

    Send it again until its group is released.
    """

    run: Name = Field(description="Name of the training run.")
    step: Step = Field(description="Step of the training run.")
    attempt: str | None = ATTEMPT
    group_size: int = Field(ge=1, le=1024, description="Number of members of a complete group.")
    wait_s: FiniteFloat = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds from the first member of the group until the group is released, "
        "complete or not.",
    )
    options: EpisodeOptions = Field(EpisodeOptions(), description="The same for all members.")
    item: EpisodeRequest = Field(description="The episode, with its `group`.")

    @model_validator(mode="after")
    def _has_a_group(self) -> Self:
        if self.item.group is None:
            raise ValueError("item.group: name the group of the episode")
        if self.options.normalize == "running":
            raise ValueError("options.normalize: running is available in `/score/batch` only")
        return self


class GroupMemberResponse(Response):
    """The result of the episode once its group is released, else when to send it again."""

    released: bool = Field(description="Whether the group is released.")
    missing: int = Field(description="Members that have not arrived.")
    retry_after_s: float | None = Field(
        None, description="Seconds until the next attempt; null once the group is released."
    )
    result: EpisodeScore | None = Field(
        None, description="The score of the episode; null until the group is released."
    )
    group: GroupStats | None = Field(None, description="Its statistics; null until it is released.")


_BY_SUCCESS = of_types(success_rate="number", diversity="null")
_BY_DIVERSITY = of_types(success_rate="null", diversity="number", target_diversity="number")


class TemperatureAdaptation(Request, json_schema_extra={"oneOf": [_BY_SUCCESS, _BY_DIVERSITY]}):
    """The outcome of one step of a run, which moves the temperatures of the run once."""

    run: Name = Field(description="Name of the training run.")
    step: Step = Field(description="Step of the training run.")
    attempt: str | None = ATTEMPT
    success_rate: Fraction | None = Field(None, description="Of this step; give it or `diversity`.")
    target_success_rate: Fraction = Field(
        0.5, description="Above it, temperatures rise; below it, they fall."
    )
    diversity: FiniteFloat | None = Field(
        None,
        ge=0,
        description="Mean distance between two trajectories, measured in this step; give it or "
        "`success_rate`.",
    )
    target_diversity: FiniteFloat | None = Field(
        None,
        gt=0,
        description="Temperatures rise below it, and fall above it. `diversity` needs it.",
    )

    @model_validator(mode="after")
    def _has_one_signal(self) -> Self:
        if (self.success_rate is None) == (self.diversity is None):
            raise ValueError("give success_rate, or diversity with target_diversity")
        if self.diversity is not None and self.target_diversity is None:
            raise ValueError("diversity needs a target_diversity")
        return self


class TemperaturesRequest(Request):
    """A request for the temperatures of the samples of one prompt."""

    n: int = Field(ge=1, le=1024, description="Number of samples.")
    base_temperature: FiniteFloat = Field(0.6, gt=0, le=2, description="The lowest temperature.")
    temperature_range: FiniteFloat = Field(
        0.3, ge=0, le=2, description="The highest temperature minus the lowest."
    )
    adapt: TemperatureAdaptation | None = Field(
        None,
        description="Adapt base and range to the outcome of a step. The two fields above are then "
        "their values before the first step.",
    )


class TemperaturesResponse(Response):
    """One temperature per sample, rising evenly from base to base + range."""

    temperatures: list[float] = Field(description="[n], rising evenly.")
    base_temperature: float = Field(description="The lowest temperature, after adaptation.")
    temperature_range: float = Field(description="The highest minus the lowest, after adaptation.")
