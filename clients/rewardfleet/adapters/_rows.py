"""The one shape of an adapter, and what trainers do with a missing reward.

An adapter reads samples out of a trainer's batch, makes one call of a `RowReward`, and puts the
rewards back where the trainer wants them.
"""

import asyncio
import dataclasses
import importlib
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any, get_args

import numpy as np

from rewardfleet.adapters.settings import attempt
from rewardfleet.client import RewardFleet
from rewardfleet.event_loop_thread import EventLoopThread
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

#: So many calls in a row without any reward end a run: batches; or, of a function that is called
#: per sample, the timeouts of so many calls. Answers without a verdict do not count.
MOST_CALLS = 3


class MissingReward(BaseException):
    """A failure for trainers that turn each `Exception` into a reward of 0.

    It is a `BaseException`, so they do not catch it.
    """


def module_of_trainer(name: str, install: str) -> Any:
    """Import a module of a trainer, or raise `ImportError` with the command that installs it."""
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


def check_choice(name: str, value: object, accepted: Any) -> None:
    """Raise `ValueError` if an argument is none of the values of a `Literal`."""
    if value not in get_args(accepted):
        raise ValueError(f"{name}: give one of {', '.join(get_args(accepted))}; not {value!r}")


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
        service, url, column, columns, options: See `rewardfleet.adapters`. Instead of the URL, a
            fleet with the service may be given, as it is.
        trainer: Its name, as in `NAN_WOULD`, if it is known already.

    Raises:
        ValueError: `on_failure` is NaN, and the trainer does not leave it out.
    """

    def __init__(
        self,
        service: str,
        url: str | Sequence[str] | RewardFleet,
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
        self._is_default = on_failure is None
        common: dict[str, Any] = {"attempt": attempt(), "coalesce_s": COALESCE_SECONDS}
        common |= {"on_failure": "raise" if on_failure is None else on_failure, service: url}
        self.fleet = url if isinstance(url, RewardFleet) else RewardFleet(**{**common, **options})
        self.client: Any = getattr(self.fleet, service)
        self.loop = EventLoopThread(self.fleet.aclose)  #: for trainers that do not await
        self._missed = 0  #: calls in a row without any reward
        self._first_missed = 0.0  #: when the first of them had ended
        self.policy_for(trainer)

    def policy_for(self, trainer: str) -> RewardPolicy:
        """Return the policy for calls of a trainer, or raise `ValueError`: see `NAN_WOULD`."""
        policy: RewardPolicy = self.client.policy
        would = NAN_WOULD.get(trainer)
        if would and policy.on_failure != "raise" and math.isnan(policy.on_failure):
            what = f"NaN would {would} in {trainer}"
            raise ValueError(f"on_failure: {what}; give 'raise' or a number")
        if self._is_default and would == "":
            return dataclasses.replace(policy, on_failure=math.nan)
        return policy

    def subclass_of(self, base: type) -> type:
        """Return a subclass `CodeReward`, `ToolsReward` or `VideoReward` with this as `scorer`."""
        return type(f"{self.service.capitalize()}Reward", (base,), {"scorer": self})

    async def scores(
        self, completions: Sequence[Any], rows: Sequence[SampleRow], step: int | None = None
    ) -> list[Any]:
        """Score a batch in one call. An item that fails has its own `error`.

        Args:
            completions: See `text_of`. The video service ignores them.
            step: That of the trainer, for requests without one.

        Raises:
            InvalidRequest: A row or a completion has an invalid value.
            RewardFleetError: The URL is wrong, or patience is over.
        """
        samples = [self._sample(*each) for each in zip(completions, rows, strict=True)]
        # In a thread: it encodes the frames of clips.
        requests = await asyncio.to_thread(requests_of, self.service, samples)
        if step is not None:
            update = {"step": step}
            requests = [r if r.step is not None else r.model_copy(update=update) for r in requests]
        scores = await scores_of(self.client, requests)
        self._check_patience(scores, is_batch=True)
        return scores

    async def rewards(
        self,
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        metrics: dict[str, float] | None = None,
        step: int | None = None,
        trainer: str = "",
    ) -> list[float]:
        """Return one reward per completion.

        Args:
            columns: Those of the dataset, with a value per completion.
            metrics: Gets those of `metrics_of`.
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
        if metrics is not None:
            metrics.update(metrics_of(scores, self.service))
        return [policy.reward(score) for score in scores]

    async def score(
        self, completion: Any, row: SampleRow, step: int | None = None
    ) -> tuple[float, Any]:
        """Return the reward of one response, and its score, which has the `error` of a failure.

        Args:
            row: The row of the dataset. Its other fields are read as fields of the request.

        Raises:
            InvalidRequest: The row has no such field, or it or the response has an invalid value.
            RewardFleetError: There is no reward, and `on_failure` is "raise" or patience over.
        """
        fields = fields_of(self._declared, *self._sample(completion, row))
        try:
            score = await self.client.score(**{"step": step, **fields})
        except RewardFleetError as error:
            reward, score = self.client.policy.failed(error), failed(error, self.client.score_type)
        else:
            reward = self.client.policy.reward(score)
        self._check_patience([score], is_batch=False)
        return reward, score

    def is_patience_over(self, statuses: Collection[str], *, is_batch: bool) -> bool:
        """Return whether the service has stayed away too long, so that a run would waste its data.

        Args:
            statuses: Those of the scores of a call, see `Status`.
            is_batch: Whether it has all samples of a step.
        """
        now = time.monotonic()
        if Status.OK in statuses:
            self._missed = 0
        if Status.OK in statuses or Status.ERROR not in statuses:
            return False
        self._missed += 1
        if self._missed == 1:
            self._first_missed = now
        # The first call had taken one timeout.
        lasts = now - self._first_missed > (MOST_CALLS - 1.5) * self.client.timeout_s
        return self._missed >= MOST_CALLS and (is_batch or lasts)

    def _check_patience(self, scores: Sequence[Score], *, is_batch: bool) -> None:
        if self.is_patience_over({each.status for each in scores}, is_batch=is_batch):
            problem = next(each.error for each in scores if each.error is not None)
            detail = f"no reward in {self._missed} calls in a row: {problem.detail}"
            raise RewardFleetError.from_problem(problem.model_copy(update={"detail": detail}))

    def _sample(self, completion: Any, row: SampleRow) -> tuple[Any, Any, SampleRow]:
        if row.get(self.truth) is None:
            what = "null" if self.truth in row else "missing"
            raise InvalidRequest(f"{self.truth!r} is {what}; there are: {', '.join(sorted(row))}")
        return completion, row[self.truth], row


def metrics_of(scores: Sequence[Score], service: str | None = None) -> dict[str, float]:
    """Return what a trainer logs of a batch, never NaN: means of `marks_of`, and quartiles."""
    marks = [marks_of(score, service) for score in scores]
    means = {name: float(np.mean([each[name] for each in marks])) for name in (marks or [{}])[0]}
    return means | quartiles_of([score.score for score in scores if score.score is not None])


def marks_of(score: Score, service: str | None = None) -> dict[str, float]:
    """Return what a trainer logs of a sample: `reward/failed`, `reward/abstained`, `reward/cached`.

    Each is 1.0 or 0.0. All samples have the same names, as trainers need that average over
    processes.

    Args:
        service: Whose causes are marked as well, e.g. `reward/cause/wrong_answer`.
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
    quartiles = np.percentile(rewards, [*QUARTILES.values()]) if rewards else ()
    return {name: float(each) for name, each in zip(QUARTILES, quartiles, strict=False)}
