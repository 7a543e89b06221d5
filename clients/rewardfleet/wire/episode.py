"""`POST /score`, `/score/batch`, `/collect` and `/temperatures` of the episode service.

The models hold types and names. What the numbers may be is checked where they are reckoned with,
in `rewardfleet.episodes`, so that a notebook hears the same of a bad item as a caller over HTTP.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from .score import Request, Response, Score, Timing

#: The most episodes that one batch may carry.
MAX_EPISODES = 4096

Kind = Literal[
    "success",
    "return",
    "rm",
    "efficiency",
    "hybrid",
    "visual",
    "objectives",
    "shaped",
    "discounted",
]
Objective = Literal["success", "efficiency", "smoothness", "energy", "path_length", "progress"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Step = Annotated[int, Field(ge=0, le=2**53)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Weight = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]


class EpisodeRequest(Request):
    """One episode. Beside `uid`, only what its `kind` needs must be given."""

    uid: Name = Field(description="The episode's name, once in a batch.")
    kind: Kind = Field("success", description="What it is worth; see the guide for each formula.")
    group: Name | None = Field(None, description="The prompt or task that it is a sample of.")
    success: bool | Literal[0, 1] | None = None
    steps: FiniteFloat | None = Field(None, description="Steps taken, 0 to `max_steps`.")
    max_steps: FiniteFloat | None = Field(None, description="Steps that the task allows, above 0.")
    episode_reward: FiniteFloat | None = Field(None, description="The environment's, summed.")
    step_rewards: list[FiniteFloat] | None = Field(None, description="One a step.")
    step_token_ends: list[int] | None = Field(
        None, description="Index of the last token of each step, counted from 0, rising."
    )
    rm_score: FiniteFloat | None = Field(None, description="A pre-computed score.")
    temperature: FiniteFloat | None = Field(None, description="It was sampled at, 0 or above.")
    actions: list[list[FiniteFloat]] | None = Field(None, description="[T, A].")
    path: list[list[FiniteFloat]] | None = Field(
        None, description="[T, D]: positions of the end effector, in metres."
    )
    progress: list[FiniteFloat] | None = Field(None, description="[T]: how far along, e.g. 0 to 1.")
    visual_success: FiniteFloat | Score | None = Field(
        None, description="In [0, 1], or the answer of the video service as it is."
    )


class Keep(Request):
    """Which episodes to train on. What fails one of these rules has `keep: false`."""

    test_time_rl: bool = Field(False, description="All train, unless another field says otherwise.")
    drop_all_equal: bool | None = Field(
        None,
        description="Dynamic sampling: drop a group whose rewards are all equal. Default: yes, "
        "and no with `test_time_rl`.",
    )
    tolerance: Annotated[FiniteFloat, Field(ge=0)] = Field(
        1e-3, description="Rewards that are no further apart than this are equal."
    )
    accuracy_bounds: tuple[Share, Share] | None = Field(
        None, description="Drop a group whose success rate lies outside of these."
    )
    select: Literal["efficient", "diverse"] | None = Field(
        None, description="Keep only `select_count` of each group, by fewest steps or by distance."
    )
    select_count: int = Field(4, ge=1)
    last_try: bool = Field(False, description="No more resampling: keep all.")


class Clusters(Request):
    """How similar trajectories of a group are found, for a majority vote."""

    over: Literal["actions", "path"] = "actions"
    distance: Literal["resampled", "dtw"] = Field(
        "resampled",
        description="resampled: point by point, after both are brought to 32 points. "
        "dtw: dynamic time warping.",
    )
    threshold: Annotated[FiniteFloat, Field(ge=0)] = Field(
        0.1, description="Root mean square distance up to which two are similar; unit: the data's."
    )


class EpisodeOptions(Request):
    """What holds for a whole batch."""

    efficiency: Literal["reciprocal", "linear", "exponential", "group_best"] = "reciprocal"
    gamma: Share = Field(0.99, description="Discount of a step, for `shaped` and `discounted`.")
    weights: dict[Objective, Weight] = Field(
        {"success": 1.0, "efficiency": 1.0},
        min_length=1,
        description="Of the kind `objectives`.",
    )
    combine: Literal["sum", "gated", "normalised"] = Field(
        "sum",
        description="sum: weighted sum. gated: that, times success. normalised: each objective "
        "in its group, then the sum.",
    )
    normalise: Literal["none", "length", "group_mean", "group_deviation", "running"] = "none"
    keep: Keep = Keep()
    clusters: Clusters | None = None

    @model_validator(mode="after")
    def _diversity_is_a_distance(self) -> Self:
        if self.keep.select == "diverse" and self.clusters is None:
            raise ValueError("keep.select: diverse needs `clusters`, which says what is similar")
        return self


class EpisodeBatchHead(Request):
    """What a batch says beside its items."""

    options: EpisodeOptions = EpisodeOptions()
    run: Name | None = Field(None, description="The training run; with `normalise: running`.")
    step: Step | None = Field(None, description="Its step; likewise.")

    @model_validator(mode="after")
    def _running_needs_a_run(self) -> Self:
        if self.options.normalise == "running" and (self.run is None or self.step is None):
            raise ValueError("normalise: running needs `run` and `step`")
        return self


class EpisodeBatch(EpisodeBatchHead):
    """A rollout batch with its groups. One bad episode does not fail the others."""

    items: list[EpisodeRequest] = Field(min_length=1, max_length=MAX_EPISODES)


class EpisodeScore(Score):
    """A `Score` with what a trainer does with the episode."""

    uid: str = ""
    keep: bool = Field(True, description="Whether to train on it.")
    dropped: Literal["all_equal", "accuracy", "alone", "not_selected"] | None = Field(
        None, description="Which rule says not to."
    )
    cluster: int | None = Field(None, description="Number of its cluster in its group.")
    pseudo_label: Literal[0, 1] | None = Field(
        None, description="1 in the largest cluster of its group, else 0."
    )
    step_rewards: list[FiniteFloat] | None = Field(
        None, description="Of `hybrid` and `shaped`: one a step; the score is their sum."
    )
    token_positions: list[int] | None = Field(
        None, description="Where these go: `step_token_ends` as it was given."
    )


class GroupStats(Response):
    """What the scored members of a group have in common; rewards before normalisation."""

    group: str
    size: int = Field(description="Members that were scored.")
    mean: float
    deviation: float | None = Field(None, description="Of a sample (n - 1); null for one member.")
    success_rate: float | None = Field(None, description="Null where a member tells no success.")
    all_equal: bool
    clusters: int | None = None
    majority_ratio: float | None = Field(None, description="Share of the largest cluster.")
    diversity: float | None = Field(None, description="Mean distance of two members.")


class TemperatureStats(Response):
    """The episodes sampled at about one temperature."""

    temperature: str = Field(description="To the nearest 0.1; `2.0` is 2 and above.")
    episodes: int
    success_rate: float | None
    steps: float | None = Field(description="Mean.")
    reward_mean: float
    reward_variance: float


class RunningStats(Response):
    """What a run's rewards were so far, with those of this batch."""

    count: int
    mean: float
    variance: float


class EpisodeAnswer(Response):
    """One result an item, in the same order, and what they come to by group and temperature."""

    results: list[EpisodeScore]
    groups: list[GroupStats] = Field(default_factory=list)
    temperatures: list[TemperatureStats] = Field(default_factory=list)
    running: RunningStats | None = None
    provenance: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    timing_ms: Timing = Field(default_factory=Timing)


class CollectRequest(Request):
    """One episode of a group whose members come one by one. Send it again until it is released."""

    run: Name
    step: Step
    group_size: int = Field(ge=1, le=1024, description="How many make the group whole.")
    wait_s: Annotated[FiniteFloat, Field(gt=0, le=3600)] = Field(
        60.0, description="Seconds from the group's first member to its release, whole or not."
    )
    options: EpisodeOptions = EpisodeOptions()
    item: EpisodeRequest

    @model_validator(mode="after")
    def _is_of_a_group(self) -> Self:
        if self.item.group is None:
            raise ValueError("item.group: say which group it is of")
        if self.options.normalise == "running":
            raise ValueError("options.normalise: running is for whole batches")
        return self


class CollectAnswer(Response):
    """The episode's result, once its group is released."""

    released: bool
    missing: int = Field(description="Members that have not come (yet).")
    retry_after_s: float | None = Field(None, description="Seconds, where it is not released.")
    result: EpisodeScore | None = None
    group: GroupStats | None = None


class Adapt(Request):
    """What one step of a run showed, to move its temperatures by."""

    run: Name
    step: Step
    success_rate: Share | None = Field(None, description="Of the step.")
    target_success_rate: Share = 0.5
    diversity: Annotated[FiniteFloat, Field(ge=0)] | None = Field(None, description="Of the step.")
    target_diversity: Annotated[FiniteFloat, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_signal(self) -> Self:
        if (self.success_rate is None) == (self.diversity is None):
            raise ValueError("give success_rate, or diversity with target_diversity")
        if self.diversity is not None and self.target_diversity is None:
            raise ValueError("diversity needs a target_diversity")
        return self


class TemperaturesRequest(Request):
    """Ask for the temperature of each of a prompt's samples."""

    n: int = Field(ge=1, le=1024, description="Samples of one prompt.")
    base_temperature: Annotated[FiniteFloat, Field(gt=0, le=2)] = 0.6
    temperature_range: Annotated[FiniteFloat, Field(ge=0, le=2)] = 0.3
    adapt: Adapt | None = Field(
        None, description="Move base and range by a step's outcome; the above is where they begin."
    )


class TemperaturesAnswer(Response):
    """One temperature a sample, rising evenly from base to base + range."""

    temperatures: list[float]
    base_temperature: float
    temperature_range: float
