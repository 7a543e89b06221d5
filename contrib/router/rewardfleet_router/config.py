"""The configuration of a training run of the router: `key=value` arguments, with verl's keys.

```python
config = parse_arguments(["data.train_files=train.parquet", "router.budget_B=0.3", ...])
```
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import BudgetOptions, CostWeights, PidGains
from rewardfleet.wire.validation import validate

from .verl_keys import OWN_LOOP, RENAMED, Rule, without_effect

NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
#: The highest limit on λ that the tools service takes, in task reward per unit of cost.
MAX_LAMBDA = 1e6
#: The error of a run whose steps have one answer each.
ONE_ANSWER = (
    "actor_rollout_ref.rollout.n, data.train_batch_size: give 2 or more for one of them; an answer "
    "that is compared with none has no advantage"
)
Config = TypeVar("Config", bound=BaseModel)


def _one_or_more(value: object) -> object:
    """Return a single file as a tuple, as verl accepts both."""
    return (value,) if isinstance(value, str | Path) else value


Files = Annotated[tuple[Path, ...], BeforeValidator(_one_or_more)]


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Algorithm(Section):
    """`algorithm.*`."""

    adv_estimator: Literal["grpo"] = Field("grpo", description="Advantages within a prompt.")


class Data(Section):
    """`data.*`: rows with `prompt`, `reward_model.ground_truth` and `extra_info.index`."""

    train_files: Files = Field(min_length=1, description="Parquet, JSON or JSON Lines.")
    val_files: Files = Field((), description="Held-out rows.")
    train_batch_size: Positive = Field(512, description="Prompts per step.")
    val_batch_size: Positive = Field(128, description="Prompts per batch of an evaluation.")
    max_prompt_length: Positive = Field(2048, description="Tokens of a prompt.")
    max_response_length: Positive = Field(1024, description="Tokens that the actor generates.")
    truncation: Literal["error", "left", "right"] = Field(
        "error", description="What happens to a prompt that is longer."
    )
    shuffle: bool = Field(True, description="Another order in each epoch.")
    seed: int = Field(0, ge=0, description="Of the order, the routes, and the responses.")


class Optimizer(Section):
    """`router.optim.*` and `actor_rollout_ref.actor.optim.*`: AdamW."""

    lr: NonNegative | None = Field(
        None,
        description="Learning rate. Of the router, null: the actor's optimizer also trains the "
        "head. Of the actor, null or 0: its weights stay.",
    )
    weight_decay: NonNegative = Field(0.0, description="Decoupled weight decay.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999), description="Weights of the old averages of gradient and squared gradient."
    )
    eps: Annotated[FiniteFloat, Field(gt=0)] = Field(
        1e-8,
        description="Added to the root of the average squared gradient. A policy that is certain "
        "has small gradients; with a small eps their noise still moves it by the learning rate.",
    )
    grad_clip: Annotated[FiniteFloat, Field(gt=0)] = Field(
        1.0, description="Largest norm of the gradient."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate falls to 0 until the last step."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps in which the learning rate rises.")


class Model(Section):
    """`actor_rollout_ref.model.*`."""

    path: Path = Field(description="A causal language model, as transformers stores it.")


class Actor(Section):
    """`actor_rollout_ref.actor.*`."""

    optim: Optimizer = Optimizer()
    ppo_mini_batch_size: Positive | None = Field(
        None, description="Prompts per update: those of a step, data.train_batch_size."
    )


class Rollout(Section):
    """`actor_rollout_ref.rollout.*`."""

    name: Literal["hf"] = Field("hf", description="transformers generates.")
    tensor_model_parallel_size: Literal[1] = Field(1, description="One device.")
    n: Positive = Field(
        4,
        description="Copies of each prompt; each samples a route. Advantages are those within a "
        "prompt; with 1, those within the batch of a step, which are noisier.",
    )
    temperature: Annotated[FiniteFloat, Field(gt=0)] = Field(1.0, description="Of generation.")


class ActorRolloutRef(Section):
    """`actor_rollout_ref.*`."""

    model: Model
    actor: Actor = Actor()
    rollout: Rollout = Rollout()


class Router(Section):
    """`router.*`."""

    enable: Literal[True] = Field(True, description="This program trains nothing else.")
    budget_B: Annotated[FiniteFloat, Field(ge=0)] = Field(  # noqa: N815 - the published key
        0.3, description="Mean cost per answer to stay within."
    )
    cost: Literal["any_tool", "families", "calls"] = Field(
        "any_tool", description="What costs; see the tools service."
    )
    cost_weights: CostWeights = CostWeights()
    variant: Literal["strict", "toolrl"] = Field("strict", description="Of the task reward.")
    controller: Literal["dual_ascent", "pid"] = Field("pid", description="Of the multiplier.")
    eta: Annotated[FiniteFloat, Field(gt=0)] = Field(0.05, description="Its step size.")
    initial_lambda: NonNegative = Field(0.0, description="The multiplier at the start.")
    max_lambda: Annotated[FiniteFloat, Field(gt=0, le=MAX_LAMBDA)] = Field(
        MAX_LAMBDA, description="Its limit; the default, the service's highest, is no limit."
    )
    pid: PidGains = PidGains()
    every: Positive = Field(1, description="Steps per update of the multiplier.")
    advantage: Literal["mean", "separate", "std"] = Field(
        "mean", description="mean: task - lambda * cost. std: the plain formula of GRPO."
    )
    pooling: Literal["last", "mean"] = Field(
        "last", description="The hidden state of the last prompt token, or the mean of all."
    )
    routes_per_prompt: Positive | None = Field(
        None,
        description="Routes sampled per prompt, shared evenly by its copies. Null: one per copy.",
    )
    entropy_coeff: NonNegative = Field(0.01, description="Weight of the entropy bonus.")
    final_entropy_coeff: NonNegative | None = Field(
        None,
        description="Its weight in the last third of the steps, reached linearly. Null: the same.",
    )
    exploration_coeff: NonNegative = Field(
        0.0,
        description="Weight of KL(uniform || policy), which keeps all routes in use: unlike that "
        "of the entropy, its gradient does not vanish when a route is no longer sampled.",
    )
    final_exploration_coeff: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        None, description="Its weight in the last third of the steps, reached exponentially."
    )
    label_weight: NonNegative = Field(
        0.0, description="Weight of the cross-entropy with labels that are not MIXED."
    )
    labels: Path | None = Field(
        None, description="Sidecar with labels. Null: columns of the rows, where they have them."
    )
    optim: Optimizer = Optimizer(lr=1e-3)
    responder: str = Field(
        "actor",
        description="Who answers: the actor, or a function `module:name`; see `Responder`.",
    )
    url: str = Field("http://127.0.0.1:18083", description="The tools service.")
    timeout_s: Annotated[FiniteFloat, Field(gt=0)] = Field(
        120.0, description="Seconds for a call of the service, with retries."
    )

    def budget_options(self) -> dict[str, Any]:
        """Return the fields of `PUT /budgets/{run}`."""
        names = BudgetOptions.model_fields.keys() & type(self).model_fields.keys()
        return {"budget": self.budget_B, **self.model_dump(include=set(names))}


class TrainerSection(Section):
    """`trainer.*`."""

    total_epochs: Positive = Field(15, description="Passes over the training rows.")
    total_training_steps: Positive | None = Field(
        None, description="Steps of the run. Null: those of all epochs."
    )
    save_freq: int = Field(200, ge=-1, description="Steps between checkpoints; -1 or 0: none.")
    save_on_exit: bool = Field(
        True, description="A checkpoint at the end, on SIGINT, SIGTERM, and errors."
    )
    test_freq: int = Field(-1, ge=-1, description="Steps between evaluations; -1 or 0: none.")
    max_actor_ckpt_to_keep: Positive | None = Field(
        None, description="How many of the newest checkpoints are stored. Null: all."
    )
    resume_mode: Literal["auto", "disable"] = Field(
        "auto", description="auto: from the newest checkpoint, if there is one."
    )
    default_local_dir: Path | None = Field(
        None, description="Of checkpoints and metrics. Null: runs/PROJECT/EXPERIMENT."
    )
    project_name: str = Field("router_grpo", min_length=1, description="For paths and W&B.")
    experiment_name: str = Field("baseline_router", min_length=1, description="For paths and W&B.")
    logger: tuple[Literal["console", "tensorboard", "wandb"], ...] = Field(
        ("console", "tensorboard"), description="Where metrics go in addition to metrics.jsonl."
    )
    device: str = Field("auto", description="A device of torch. auto: CUDA where there is one.")
    n_gpus_per_node: Literal[0, 1] = Field(1, description="0: the CPU.")
    nnodes: Literal[1] = Field(1, description="One machine.")


class RouterConfig(Section):
    """The configuration of a training run."""

    algorithm: Algorithm = Algorithm()
    data: Data
    actor_rollout_ref: ActorRolloutRef
    router: Router = Router()
    trainer: TrainerSection = TrainerSection()

    @model_validator(mode="after")
    def _has_batches_that_fit(self) -> Self:
        size = self.data.train_batch_size
        if self.actor_rollout_ref.rollout.n * size < 2:
            raise ValueError(ONE_ANSWER)
        if self.actor_rollout_ref.actor.ppo_mini_batch_size not in {None, size}:
            raise ValueError(
                "actor_rollout_ref.actor.ppo_mini_batch_size: a step has one update; give it as "
                f"data.train_batch_size, which is {size}"
            )
        return self

    @property
    def folder(self) -> Path:
        """Where checkpoints and metrics are."""
        trainer = self.trainer
        default = Path("runs") / trainer.project_name / trainer.experiment_name
        return trainer.default_local_dir or default


def parse_arguments(arguments: Iterable[str]) -> RouterConfig:
    """Parse the `key=value` arguments of this program; see `parse_as`.

    Raises:
        InvalidRequest: See `parse_as`.
    """
    return parse_as(RouterConfig, arguments, OWN_LOOP)


def parse_as(model: type[Config], arguments: Iterable[str], rules: Iterable[Rule] = ()) -> Config:
    """Parse `key=value` arguments; see `read_settings`.

    Args:
        model: The configuration.
        arguments: The arguments.
        rules: Keys of verl that may be there besides those of the model.

    Raises:
        InvalidRequest: A key is missing or unknown (the message names the nearest one), or a value
            is not valid, or has an effect in verl only.
    """
    known = list(keys(model))
    settings = read_settings(arguments)
    others = {key: value for key, value in settings.items() if key not in known}
    ignored = without_effect(others, rules, known)
    for key in others.keys() - ignored:
        nearest = difflib.get_close_matches(key, known, 1, 0.0)
        raise InvalidRequest(f"unknown key {key!r}; the nearest is {nearest[0]!r}")
    tree: dict[str, Any] = {}
    for key in settings.keys() - others.keys():
        section = tree
        *path, name = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[name] = settings[key]
    return validate(model, tree)


def read_settings(arguments: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` arguments as values by key.

    A leading `+` is ignored, and the last value of a key counts. A value is JSON, or a list as
    Hydra writes it (`[a.parquet,b.parquet]`), or else text.

    Raises:
        InvalidRequest: An argument is something else.
    """
    settings = {}
    for argument in arguments:
        key, equals, text = argument.lstrip("+").partition("=")
        if not equals:
            raise InvalidRequest(f"{argument!r}: give arguments as key=value")
        settings[RENAMED.get(key, key)] = _value(text)
    return settings


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values of a configuration."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def describe_keys() -> list[str]:
    """Return `key=default` and a description of each key, as lines."""
    return list(_describe(RouterConfig, ""))


def _describe(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _describe(kind, f"{prefix}{name}.")
        else:
            default = "" if field.is_required() else f"={json.dumps(field.default, default=str)}"
            yield f"{prefix}{name}{default}  # {field.description}"


def flatten(config: BaseModel) -> dict[str, Any]:
    """Return the configuration by dotted keys, with JSON values."""
    return dict(_flatten(config.model_dump(mode="json"), ""))


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(text: str) -> Any:
    lowered = text.lower()
    if lowered in {"true", "false", "null", "none"}:
        return {"true": True, "false": False}.get(lowered)
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return text
