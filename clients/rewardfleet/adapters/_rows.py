"""The one shape of an adapter, and what trainers do with a missing reward.

An adapter reads samples out of a trainer's batch, makes one call of a `RowReward`, and puts the
rewards back where the trainer wants them.
"""

import asyncio
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from rewardfleet.adapters.patience import Patience
from rewardfleet.adapters.settings import attempt
from rewardfleet.client import RewardFleet
from rewardfleet.rows import SampleRow, fields_of, requests_of, sampled, scores_of
from rewardfleet.service import OnFailure, RewardPolicy
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score, Status, failed

#: What NaN, as the reward of one sample, would do in a trainer; empty where it is left out. Only
#: there it is the default. docs/trainers/failures.md has the runs that showed it.
NAN_WOULD = {
    **dict.fromkeys(("AReaL", "NeMo-RL", "ROLL", "rLLM"), "spread over its group"),
    **dict.fromkeys(("TRL before 1.6", "TRL with several reward functions"), "count as 0"),
    **dict.fromkeys(("TRL OnlineDPOTrainer", "TRL SDPOTrainer", "ms-swift"), "count as 0"),
    "TRL A2POTrainer": "make all parameters NaN",
    **dict.fromkeys(("TRL GMPOTrainer", "TRL GRPOTrainer", "TRL RLOOTrainer"), ""),
    "TRL _AsyncRolloutLoop": "",  # of AsyncGRPOTrainer
}

#: The names of quartiles, and which percents they are.
QUARTILES = {f"reward/p{percent}": percent for percent in (0, 25, 50, 75, 100)}

#: Seconds in which the calls of a trainer that scores one sample per call are collected.
COALESCE_SECONDS = 0.005


class MissingReward(BaseException):
    """A failure for trainers that turn each `Exception` into a reward of 0.

    It is a `BaseException`, so they do not catch it.
    """


def module_of_trainer(name: str, install: str) -> Any:
    """Import a module of a trainer.

    Raises:
        ImportError: The trainer is not installed; the message has the command.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise ImportError(f"{name} is not installed: {install}") from None


def is_before(package: str, *version: int) -> bool:
    """Return whether a version of a trainer before this one is installed."""
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, re.findall(r"\d+", installed)[: len(version)])) < version


def rows_of(columns: Mapping[str, Any], names: Sequence[str], count: int) -> list[SampleRow]:
    """Return the rows of some columns of a dataset.

    Raises:
        InvalidRequest: A column is missing, or has another number of values than `count`.
    """
    for name in names:
        if columns.get(name) is None:
            present = ", ".join(sorted(columns))
            raise InvalidRequest(f"the dataset has no column {name!r}; it has: {present}")
        if len(columns[name]) != count:
            raise InvalidRequest(f"{name}: {len(columns[name])} values for {count} completions")
    return [{name: columns[name][index] for name in names} for index in range(count)]


class RowReward:
    """Rewards of what a policy wrote, by the rows of a dataset; it can be pickled.

    Args:
        service, url, column, columns, options: See `rewardfleet.adapters`.
        trainer: Its name, as in `NAN_WOULD`, if it is known already.

    Raises:
        ValueError: `on_failure` is NaN, and the trainer does not leave it out.
    """

    def __init__(
        self,
        service: str,
        url: str | Sequence[str],
        *,
        column: str | None = None,
        columns: Sequence[str] = (),
        trainer: str = "",
        on_failure: OnFailure | None = None,
        **options: Any,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns: give a list of names, not {columns!r}")
        self._declared = sampled(service)
        self.service = service
        self.truth = column or self._declared.truth
        self.columns = (self.truth, *self._declared.columns, *columns)
        urls: Any = {service: url}
        self._is_default = on_failure is None
        common = {"attempt": attempt(), "coalesce_s": COALESCE_SECONDS}
        common["on_failure"] = "raise" if on_failure is None else on_failure
        self._fleet = RewardFleet(**urls, **{**common, **options})
        self._patience = Patience(self.client.timeout_s)
        self.policy_for(trainer)

    @property
    def client(self) -> Any:
        """The client of the service."""
        return getattr(self._fleet, self.service)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._fleet.aclose()

    def policy_for(self, trainer: str) -> RewardPolicy:
        """Return the policy for calls of a trainer, or raise `ValueError`: see `NAN_WOULD`."""
        policy: RewardPolicy = self.client.policy
        would = NAN_WOULD.get(trainer)
        if would and isinstance(policy.on_failure, float) and math.isnan(policy.on_failure):
            raise ValueError(
                f"on_failure: NaN would {would} in {trainer}; give 'raise' or a number"
            )
        if self._is_default and would == "":
            return dataclasses.replace(policy, on_failure=math.nan)
        return policy

    def subclass_of(self, base: type) -> type:
        """Return a subclass `CodeReward`, `ToolsReward` or `VideoReward` with this as `scorer`."""
        name = f"{self.service.capitalize()}Reward"
        doc = f"Rewards of the {self.service} service."
        return type(name, (base,), {"scorer": self, "__doc__": doc})

    async def scores(
        self, completions: Sequence[Any], rows: Sequence[SampleRow], step: int | None = None
    ) -> list[Any]:
        """Score a batch in one call. An item that fails has its own `error`.

        Args:
            completions: See `completion_text`. The video service ignores them.
            step: That of the trainer, for requests without one.

        Raises:
            InvalidRequest: A row or a completion has an invalid value.
            RewardFleetError: The URL is wrong, or `Patience` is over.
        """
        samples = [self._sample(*each) for each in zip(completions, rows, strict=True)]
        # In a thread: it encodes the frames of clips.
        requests = await asyncio.to_thread(requests_of, self.service, samples)
        if step is not None:
            requests = [
                each.model_copy(update={"step": step}) if each.step is None else each
                for each in requests
            ]
        scores = await scores_of(self.client, requests)
        self._patience.check(scores, is_batch=True)
        return scores

    async def rewards(
        self,
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        log_metric: Callable[[str, float], object] | None = None,
        step: int | None = None,
        trainer: str = "",
    ) -> list[float]:
        """Return one reward per completion.

        Args:
            columns: Those of the dataset, with a value per completion.
            log_metric: Called with the name and value of each of `metrics_of`.
            step: That of the trainer, if it is not in `trainer_state`, as with TRL and ms-swift.
            trainer: Which one calls, if that is known only now; see `policy_for`.

        Raises:
            InvalidRequest: A column is missing, or it or a completion has an invalid value.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        policy = self.policy_for(trainer)
        step = getattr(columns.get("trainer_state"), "global_step", step)
        rows = rows_of(columns, self.columns, len(completions))
        scores = await self.scores(completions, rows, step)
        if log_metric is not None:
            for name, value in metrics_of(scores, self.service).items():
                log_metric(name, value)
        return [policy.reward(score) for score in scores]

    async def score(
        self, completion: Any, row: SampleRow, step: int | None = None
    ) -> tuple[float, Any]:
        """Return the reward of one response, and its score, which has the `error` of a failure.

        Concurrent calls are collected into batches.

        Args:
            row: The row of the dataset. Its other fields are read as fields of the request.

        Raises:
            InvalidRequest: The row has no such field, or it or the response has an invalid value.
            RewardFleetError: There is no reward, and `on_failure` is "raise" or `Patience` over.
        """
        fields = fields_of(self._declared, *self._sample(completion, row))
        try:
            score = await self.client.score(**{"step": step, **fields})
        except RewardFleetError as error:
            reward, score = self.client.policy.failed(error), failed(error, self.client.score_type)
        else:
            reward = self.client.policy.reward(score)
        self._patience.check([score], is_batch=False)
        return reward, score

    def _sample(self, completion: Any, row: SampleRow) -> tuple[Any, Any, SampleRow]:
        if row.get(self.truth) is None:
            what = "null" if self.truth in row else "missing"
            raise InvalidRequest(f"{self.truth!r} is {what}; there are: {', '.join(sorted(row))}")
        return completion, row[self.truth], row


def metrics_of(scores: Sequence[Score], service: str | None = None) -> dict[str, float]:
    """Return what a trainer logs of a batch; none of it is NaN.

    The means of `marks_of`, which are shares; and the quartiles of the scores there are,
    `reward/p0` to `reward/p100`.
    """
    marks = [marks_of(score, service) for score in scores]
    means = {name: float(np.mean([each[name] for each in marks])) for name in (marks or [{}])[0]}
    return means | quartiles_of([score.score for score in scores if score.score is not None])


def marks_of(score: Score, service: str | None = None) -> dict[str, float]:
    """Return what a trainer logs of a sample: `reward/failed`, `reward/abstained`, `reward/cached`.

    Each is 1.0 or 0.0. All samples have the same names, as trainers need that average over
    processes.

    Args:
        service: Whose causes are marked as well, e.g. `reward/cause/wrong_answer`. Errors are in
            `reward/failed` alone.
    """
    causes = SERVICES[service].causes if service else ()
    return {
        "reward/failed": float(score.status is Status.ERROR),
        "reward/abstained": float(score.status is Status.ABSTAINED),
        "reward/cached": float(score.cached),
        **{f"reward/cause/{each}": float(each == score.cause) for each in causes},
    }


def quartiles_of(rewards: Sequence[float]) -> dict[str, float]:
    """Return the quartiles of rewards, as `reward/p0` to `reward/p100`; none of no rewards."""
    if not rewards:
        return {}
    quartiles = np.percentile(rewards, [*QUARTILES.values()])
    return {name: float(each) for name, each in zip(QUARTILES, quartiles, strict=True)}
