"""Models of the tools service: `POST /score`, `/score/batch`, and budgets."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator
from pydantic.config import JsonDict

from .causes import ToolsCause, cause_field
from .errors import ErrorKind
from .policy_text import PolicyAnswer
from .run_state import ATTEMPT
from .score import (
    LABELS,
    UID_LABEL,
    JsonSchema,
    Name,
    Request,
    Response,
    Score,
    Step,
    having,
    of_types,
)
from .truth import given, parsed, plain, truth_text

#: Limit on the numbers of a checkpoint, so that no sum overflows.
MAX_SUM = 10**30
Family = Literal["search", "calculate", "other"]
#: How models write tool calls; see `rewardfleet.tool_use.dialects`.
Dialect = Literal[
    "hermes", "qwen3_coder", "glm", "mistral", "llama_json", "pythonic", "kimi_k2", "deepseek",
    "minimax_m2", "harmony",
]  # fmt: skip

_TAGS_OR_JSON = {"pattern": r"<(think|tool_call|response)>|^\s*[\[{]"}
_TruthText = Annotated[
    str, Field(min_length=1, max_length=100_000, json_schema_extra=_TAGS_OR_JSON)
]
_JsonTruth = list[JsonValue] | dict[str, JsonValue]
_Truth = Annotated[
    _TruthText, BeforeValidator(truth_text, json_schema_input_type=_TruthText | _JsonTruth)
]
ToolName = Annotated[str, Field(min_length=1, max_length=1_000)]
Families = Annotated[dict[ToolName, Family], Field(max_length=10_000)]
#: A pattern of a name or description, with `*` for any text and `?` for one character.
Glob = Annotated[str, Field(min_length=1, max_length=100)]
Globs = Annotated[tuple[Glob, ...], Field(max_length=100)]
Cost = Annotated[FiniteFloat, Field(ge=0, le=1e6)]
#: A weight of an old value in an exponential moving average.
Smoothing = Annotated[FiniteFloat, Field(ge=0, lt=1)]


class CostWeights(Request):
    """What the use of tools costs; see `ToolsOptions.cost`."""

    any_tool: Cost = Field(1.0, description="Of an answer that uses any tool, for `any_tool`.")
    search: Cost = Field(1.0, description="Of search tools.")
    calculate: Cost = Field(1.0, description="Of calculation tools.")
    other: Cost = Field(1.0, description="Of all other tools.")


_OF_TOOLRL = (
    "refined_reward", "coarse_reward", "intermediate_reward", "correct_max1", "max1_step30_max3",
    "schedule_reward",
)  # fmt: skip
_NONE_OF_TOOLRL: JsonSchema = {"properties": {each: {"const": False} for each in _OF_TOOLRL}}
_SCHEDULED = ("schedule_length", "max1_step30_max3", "schedule_reward")
_SCHEDULES: JsonSchema = {"anyOf": [having(each, True) for each in _SCHEDULED]}
_IS_SCHEDULED: JsonSchema = {"properties": {"options": _SCHEDULES}, "required": ["options"]}


class ToolsOptions(
    Request, json_schema_extra={"anyOf": [having("variant", "toolrl"), _NONE_OF_TOOLRL]}
):
    """How an answer is scored."""

    variant: Literal["strict", "toolrl"] = Field(
        "strict",
        description="strict: without the faults of the published reward. toolrl: the reward of "
        "ToolRL as published.",
    )
    dialect: Literal["auto"] | Dialect = Field(
        "auto", description="Of the calls; auto: any one. `toolrl` compares those in hermes only."
    )
    as_executed: bool = Field(
        False, description="Calls in hermes that vLLM does not run are malformed, with a cause."
    )
    with_length: bool = Field(False, description="Reward the length of `<think>`, in [0, 1].")
    schedule_length: bool = Field(
        False, description="The length for a full reward rises with `step`."
    )
    refined_reward: bool = Field(
        False, description="toolrl: names must be equal as lists, instead of by a Jaccard index."
    )
    coarse_reward: bool = Field(
        False, description="toolrl: the full correctness for the exact calls, else the lowest."
    )
    intermediate_reward: bool = Field(
        False, description="toolrl: a call counts if it is exact, without parts of parameters."
    )
    correct_max1: bool = Field(False, description="toolrl: the correctness is in [-1, 1].")
    max1_step30_max3: bool = Field(False, description="toolrl: correctness / 3 before step 30.")
    schedule_reward: bool = Field(
        False, description="toolrl: the ranges of format and correctness change with `step`."
    )
    families: Families = Field({}, description="Of tools, by name.")
    family_patterns: dict[Family, Globs] | None = Field(
        None,
        description="Patterns of names and descriptions by family, for tools that `families` does "
        "not list; `*` is any text. The first family that matches counts. Null: built-in patterns.",
    )
    cost: Literal["any_tool", "families", "calls"] = Field(
        "any_tool",
        description="any_tool: `cost_weights.any_tool` for an answer that uses tools. families: "
        "the weights of the families that it uses. calls: the weight of each call.",
    )
    cost_weights: CostWeights = Field(CostWeights(), description="Weights of the cost.")

    @model_validator(mode="after")
    def _are_of_the_variant(self) -> Self:
        if self.variant == "strict" and (name := next(filter(vars(self).get, _OF_TOOLRL), None)):
            raise ValueError(f"{name}: available with `variant: toolrl` only")
        return self

    def __hash__(self) -> int:
        # Pydantic copies a default that has none, which takes longer than the rest of an item.
        return hash((self.variant, self.cost))

    @property
    def scheduled_by(self) -> str | None:
        """The option that needs a `step`, or None."""
        return next(filter(vars(self).get, _SCHEDULED), None)


class ToolDescription(Request):
    """A tool that was available."""

    name: ToolName = Field(description="As it is called.")
    description: str = Field("", max_length=20_000, description="What it does.")
    parameters: dict[str, JsonValue] | None = Field(
        None, description="JSON Schema of its arguments, for dialects whose values have no types."
    )
    strict: bool | None = Field(None, description="Of OpenAI's form; not used.")


def _described(tool: Any) -> Any:
    return tool["function"] if isinstance(tool, dict) and "function" in tool else tool


_ToolForms = ToolDescription | dict[Literal["type", "function"], Any]
_Tool = Annotated[ToolDescription, BeforeValidator(_described, json_schema_input_type=_ToolForms)]


class ToolsRequest(
    Request, json_schema_extra={"if": _IS_SCHEDULED, "then": of_types(step="integer")}
):
    """An answer, and the correct answer it is compared with."""

    response: PolicyAnswer = Field(
        description="The answer of the policy: `<think>`, `<tool_call>`, `<response>`. Any text is "
        "scored. Null, or an empty list: it is not, with the cause `no_answer`."
    )
    ground_truth: _Truth = Field(
        description="A correct answer with the same tags, as in ToolRL's datasets; or its calls, "
        "as OpenAI, TRL, BFCL and NeMo Gym have them, also as JSON in a text."
    )
    step: Step | None = Field(None, description="Step of the run, for schedules and prices.")
    run: Name | None = Field(
        None,
        description="Training run whose budget counts: the score is task - lambda * cost. With "
        "`step`, lambda is what it was at the first score of this step.",
    )
    attempt: str | None = ATTEMPT
    options: ToolsOptions = Field(ToolsOptions(), description="How the answer is scored.")
    tools: list[_Tool] = Field(
        default_factory=list,
        max_length=1_000,
        description="The tools that were available, for patterns and types; as OpenAI has them.",
        json_schema_extra={"default": []},
    )
    tool_families: Families = Field(
        default_factory=dict,
        description="Labels of this row: families of tools by name.",
        json_schema_extra={"default": {}},
    )
    uid: str | None = UID_LABEL

    @property
    def labels(self) -> frozenset[str]:
        """Those of `LABELS` on which its score does not depend: not `step`, if it is scheduled."""
        return LABELS if self.options.scheduled_by is None else LABELS - {"step"}

    @model_validator(mode="after")
    def _has_a_step(self) -> Self:
        if self.step is None and (option := self.options.scheduled_by):
            raise ValueError(f"step: required by options.{option}")
        return self


class ToolsScore(Score):
    """A `Score` with the use of tools.

    Its components are `format`, `correctness`, with `options.with_length` `length`, and with a run
    `tool_cost`: minus lambda times what the tools cost. Its details are `task` (the sum without
    `tool_cost`), `cost` (what the tools cost), and with a run `lambda` and `violation` (cost minus
    budget).
    """

    cause: ToolsCause | ErrorKind | str | None = cause_field()
    used_any_tool: bool = Field(False, description="Whether the answer calls a tool.")
    used_search: bool = Field(False, description="Whether it calls a search tool.")
    used_calculate: bool = Field(False, description="Whether it calls a calculation tool.")
    calls: int = Field(0, description="Number of tool calls, also of those that cannot be parsed.")
    dialect: Dialect | str | None = Field(
        None, description="Of its calls. Newer services may have further dialects."
    )
    untyped: int = Field(
        0, description="Number of values compared as text and as JSON, as no schema has their type."
    )
    repeats: int = Field(0, description="Number of calls that equal an earlier one.")
    tools: dict[Family | str, dict[str, int]] = Field(
        default_factory=dict,
        description="Number of calls by family and name; the name is empty if a call cannot be "
        "parsed. Newer services may have further families.",
    )


class PidGains(Request):
    """The gains of a PID controller; `eta` is that of its integral."""

    kp: FiniteFloat = Field(
        2.0, ge=0, le=1e3, description="Of the smoothed difference of mean cost and budget."
    )
    kd: FiniteFloat = Field(0.0, ge=0, le=1e3, description="Of the rise of the smoothed cost.")
    error_smoothing: Smoothing = Field(
        0.9, description="Weight of the old value, for the difference."
    )
    cost_smoothing: Smoothing = Field(0.0, description="Weight of the old value, for the cost.")
    derivative_delay: int = Field(
        1, ge=1, le=1_000, description="Updates over which the rise of the cost is measured."
    )


class BudgetOptions(Request):
    """The budget of a training run, and how its multiplier is controlled."""

    budget: Cost = Field(0.3, description="Mean cost per answer to stay within.")
    eta: FiniteFloat = Field(0.05, gt=0, le=1e3, description="Step size of `dual_ascent`, `pid`.")
    initial_lambda: Cost = Field(0.0, description="The multiplier before the first update.")
    max_lambda: FiniteFloat = Field(1e6, gt=0, le=1e6, description="The largest multiplier.")
    controller: Literal["adaptive", "dual_ascent", "pid"] = Field(
        "adaptive",
        description="adaptive: in proportion to the budget, with a gain that follows how fast the "
        "policy learns. dual_ascent: lambda + eta * (mean cost - budget), at least 0. pid: with a "
        "proportional and a derivative term.",
    )
    pid: PidGains = Field(PidGains(), description="Gains, for `controller: pid`.")
    every: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="Steps whose mean cost makes one update of the multiplier.",
    )
    parts: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description="Parts in which the costs of a step arrive: the step is closed with the last "
        "one. Null: it is closed when a part of a later step arrives.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.initial_lambda > self.max_lambda:
            raise ValueError("initial_lambda: give at most max_lambda")
        return self


# The limits hold for requests; see `BudgetRequest`.
_BELOW: JsonDict = {"exclusiveMaximum": MAX_SUM}
_Number = Annotated[FiniteFloat, Field(json_schema_extra={"exclusiveMinimum": -MAX_SUM, **_BELOW})]
_Count = Annotated[int, Field(ge=0, json_schema_extra=_BELOW)]


class StepSum(Response):
    """Sums over answers of closed steps, or of the parts of an open one."""

    steps: _Count = Field(0, description="Closed steps.")
    parts: _Count = Field(0, description="Parts.")
    count: _Count = Field(0, description="Answers.")
    cost: _Number = Field(0.0, description="Sum of their costs.")
    task_count: _Count = Field(0, description="Answers with a task reward.")
    task: _Number = Field(0.0, description="Sum of their task rewards.")


class MultiplierCheckpoint(Response):
    """A multiplier, and what its next update depends on besides the options."""

    multiplier: Cost = Field(description="Lambda.")
    integral: _Number = Field(description="The integral term; with `adaptive` it may be below 0.")
    error: _Number = Field(0.0, description="Moving average of the difference to the budget.")
    cost: _Number = Field(0.0, description="Moving average of the cost.")
    # 0 at first, so that the first cost counts as a rise, as in omnisafe.
    past_costs: list[_Number] = Field(
        default_factory=lambda: [0.0], min_length=1, max_length=1_000, description="Earlier ones."
    )
    gain: _Number = Field(0.0, description="Of `adaptive`; 0 before its first update.")
    excess: _Number = Field(0.0, description="The relative difference over about 100 updates.")


class BudgetCheckpoint(Response):
    """What a budget resumes from. A step that is not closed is not part of it."""

    multiplier: MultiplierCheckpoint = Field(description="The controller.")
    step: Step | None = Field(None, description="The last closed step.")
    updates: _Count = Field(0, description="Updates of the multiplier.")
    window: StepSum = Field(default_factory=StepSum, description="Steps since the last update.")
    mean_cost: FiniteFloat | None = Field(None, description="Of the last update.")
    mean_task_reward: FiniteFloat | None = Field(None, description="Of the last update.")


class BudgetRequest(BudgetOptions):
    """`PUT /budgets/{run}`: create a budget, or change its options.

    The multiplier of an existing budget stays, so a trainer that starts again may send the same
    request.
    """

    checkpoint: BudgetCheckpoint | None = Field(
        None, description="To resume from the one of an earlier answer; later steps count again."
    )
    attempt: str | None = ATTEMPT

    @model_validator(mode="after")
    def _has_a_checkpoint_in_range(self) -> Self:
        if (checkpoint := self.checkpoint) is not None:
            multiplier, sums = dict(checkpoint.multiplier), dict(checkpoint.window).values()
            numbers = (*multiplier.pop("past_costs"), *multiplier.values(), *sums)
            if any(abs(number) >= MAX_SUM for number in (*numbers, checkpoint.updates)):
                raise ValueError(f"checkpoint: give numbers below {MAX_SUM:g}")
        return self


_COSTS = of_types(costs="array", mean_cost="null", count="null")
_MEAN_COST = of_types(costs="null", mean_cost="number", count="integer")


class BudgetUpdateRequest(Request, json_schema_extra={"oneOf": [_COSTS, _MEAN_COST]}):
    """`POST /budgets/{run}/update`: the costs of a step, or of a part of it."""

    step: Step = Field(description="Step of the training run.")
    part: Name = Field(
        description="Name of the part, e.g. of the worker, unique in its step. A part that is sent "
        "again is counted once."
    )
    attempt: str | None = ATTEMPT
    costs: Annotated[list[Cost], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=65_536, description="The cost of each answer."
    )
    mean_cost: Cost | None = Field(None, description="Their mean, instead; needs `count`.")
    count: int | None = Field(None, ge=1, le=1_000_000_000, description="Number of answers.")
    mean_task_reward: FiniteFloat | None = Field(
        None, ge=-1e9, le=1e9, description="Mean task reward of these answers, for monitoring."
    )

    @model_validator(mode="after")
    def _has_costs(self) -> Self:
        if (self.costs is None) == (self.mean_cost is None):
            raise ValueError("give either `costs`, or `mean_cost` and `count`")
        if (self.mean_cost is None) != (self.count is None):
            raise ValueError("count: give it together with `mean_cost`, and only then")
        return self


# `lambda` is a keyword of Python.
class _BudgetMeans(
    Response, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
):
    run: str = Field(description="The training run.")
    lambda_: float = Field(alias="lambda", description="The multiplier.")
    mean_cost: float | None = Field(None, description="Of the last update of the multiplier.")
    mean_task_reward: float | None = Field(None, description="Of the same answers, if known.")
    violation: float | None = Field(None, description="The mean cost minus the budget.")
    warning: str | None = Field(
        None,
        description="Why the budget cannot be reached, or is not yet reached: the mean cost of "
        "about the last 100 updates is some 10% off. Null: it is met, or it is too early to know.",
    )


class BudgetUpdate(_BudgetMeans):
    """The budget after an update."""

    step: Step = Field(description="The step of the request.")
    closed: bool = Field(description="Whether the step is closed.")


class Budget(_BudgetMeans):
    """A budget: `GET /budgets/{run}`."""

    step: Step | None = Field(None, description="The last closed step.")
    open_step: Step | None = Field(None, description="The step of which parts have arrived.")
    open_parts: int = Field(0, description="Number of these parts.")
    options: BudgetOptions = Field(description="As they were sent.")
    checkpoint: BudgetCheckpoint = Field(description="To resume from, by `PUT`.")


_FIELDS = ToolsRequest.model_fields.keys() - {"response"}


def fields_of_truth(ground_truth: Any, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a request that a ground truth of a trainer's dataset stands for.

    Args:
        ground_truth: The correct answer; or an object with it as `ground_truth` and further fields,
            or the JSON of that as text. Fields that a request does not have are left out.
        row: Further fields, used where the object does not have them.
    """
    found = parsed(ground_truth)
    is_object = isinstance(found, Mapping) and "ground_truth" in found
    found = {**(row or {}), **(found if is_object else {"ground_truth": ground_truth})}
    fields = given(found, _FIELDS)
    if "tools" in fields:
        tools = plain(parsed(fields["tools"]))
        fields["tools"] = [_as_tool(each) for each in tools] if isinstance(tools, list) else tools
    return fields


def _as_tool(tool: Any) -> Any:
    # It is an object, or one with it as `function`, as in OpenAI's interface; or its name.
    match tool:
        case {"function": dict(described)} | dict(described):
            schema = parsed(described.get("parameters"))
            found = given(described, ("name", "description"))
            return {**found, "parameters": schema} if isinstance(schema, dict) else found
    return {"name": tool} if isinstance(tool, str) else tool
