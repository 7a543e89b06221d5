"""Code that several adapters share: reward functions over a trainer's rows, and their metrics."""

import asyncio
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from rewardfleet.adapters.settings import attempt
from rewardfleet.client import RewardFleet
from rewardfleet.rows import SampleRow, fields_of, requests_of, sampled, scores_of
from rewardfleet.service import OnFailure
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Score, Status

#: The names of quartiles, and which percents they are.
QUARTILES = {f"reward/p{percent}": percent for percent in (0, 25, 50, 75, 100)}

#: Seconds in which the calls of a trainer that scores one sample per call are collected.
COALESCE_SECONDS = 0.005


class MissingReward(BaseException):
    """A failure for trainers that turn each `Exception` into a reward of 0.

    It is a `BaseException`, so they do not catch it.
    """


def refuse_nan(
    on_failure: OnFailure, trainer: str, *, effect: str = "spread over its group"
) -> None:
    """Refuse NaN for a trainer that does not treat it as a missing reward.

    Args:
        on_failure: The reward that replaces a missing one, or "raise".

    Raises:
        ValueError: `on_failure` is NaN.
    """
    if isinstance(on_failure, float) and math.isnan(on_failure):
        raise ValueError(
            f"on_failure: NaN would {effect} in {trainer}; give 'raise' or another number"
        )


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


class _ServiceReward:
    """What both kinds of reward functions have: a service, and a field with the truth of a row.

    The arguments are those of `rewardfleet.adapters`.
    """

    def __init__(
        self, service: str, url: str | Sequence[str], column: str | None, **options: Any
    ) -> None:
        self._declared = sampled(service)
        urls: Any = {service: url}
        self.service = service
        self._fleet = RewardFleet(**urls, **{"attempt": attempt(), **options})
        self.truth = column or self._declared.truth

    @property
    def client(self) -> Any:
        """The client of the service."""
        return getattr(self._fleet, self.service)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._fleet.aclose()


class DatasetReward(_ServiceReward):
    """A reward function over completions and the columns of their rows; it can be pickled."""

    def __init__(
        self,
        service: str,
        url: str | Sequence[str],
        column: str | None,
        columns: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(service, url, column, **options)
        self.columns = (self.truth, *self._declared.columns, *columns)

    def subclass_of(self, base: type) -> type:
        """Return a subclass `CodeReward`, `ToolsReward` or `VideoReward` with this as `scorer`."""
        name = f"{self.service.capitalize()}Reward"
        doc = f"Rewards of the {self.service} service."
        return type(name, (base,), {"scorer": self, "__doc__": doc})

    async def rewards(
        self,
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        log_metric: Callable[[str, float], object] | None = None,
        step: int | None = None,
    ) -> list[float]:
        """Return one reward per completion.

        Args:
            completions: The completions; see `completion_text`.
            log_metric: Called with the name and value of each of `metrics_of`.
            step: That of the trainer, if it is not in `trainer_state`, as with TRL and ms-swift.

        Raises:
            InvalidRequest: A column is missing, or it or a completion has an invalid value.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        rows = rows_of(columns, self.columns, len(completions))
        samples = [
            (each, row[self.truth], row) for each, row in zip(completions, rows, strict=True)
        ]
        # In a thread: it encodes the frames of clips.
        requests = await asyncio.to_thread(requests_of, self.service, samples)
        step = getattr(columns.get("trainer_state"), "global_step", step)
        if step is not None:
            requests = [
                each.model_copy(update={"step": step}) if each.step is None else each
                for each in requests
            ]
        scores = await scores_of(self.client, requests)
        if log_metric is not None:
            causes = [cause_marks(self.service, score) for score in scores]
            for name, value in {**metrics_of(scores), **_means(causes)}.items():
                log_metric(name, value)
        return [self.client.policy.reward(score) for score in scores]


def metrics_of(scores: Sequence[Score]) -> dict[str, float]:
    """Return what a trainer logs of a batch: `reward/failed`, `reward/abstained`, ….

    The shares of samples that failed, on which the judge abstained, and whose score was cached; and
    the quartiles of the scores there are, `reward/p0` to `reward/p100`. None of them is NaN.
    """
    shares = _means([marks_of(score) for score in scores])
    return shares | quartiles_of([score.score for score in scores if score.score is not None])


def _means(marks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = marks[0] if marks else ()
    return {name: float(np.mean([each[name] for each in marks])) for name in names}


def cause_marks(service: str, score: Score | None) -> dict[str, float]:
    """Return what a trainer logs of the cause of a sample: `reward/cause/wrong_answer`, ….

    Each is 1.0 or 0.0, so that their means are shares. All samples have the same names, as trainers
    need that average over processes. Errors are in `reward/failed` alone.

    Args:
        score: The score of the sample; None if the call failed.
    """
    own = None if score is None else score.cause
    return {f"reward/cause/{each}": float(each == own) for each in SERVICES[service].causes}


def marks_of(score: Score | None) -> dict[str, float]:
    """Return what a trainer logs of a sample: `reward/failed`, `reward/abstained`, `reward/cached`.

    Each is 1.0 or 0.0, so that their means are shares.

    Args:
        score: The score of the sample; None if the call failed.
    """
    return {
        "reward/failed": float(score is None or score.status is Status.ERROR),
        "reward/abstained": float(score is not None and score.status is Status.ABSTAINED),
        "reward/cached": float(score is not None and score.cached),
    }


def quartiles_of(rewards: Sequence[float]) -> dict[str, float]:
    """Return the quartiles of rewards, as `reward/p0` to `reward/p100`; none of no rewards."""
    if not rewards:
        return {}
    quartiles = np.percentile(rewards, [*QUARTILES.values()])
    return {name: float(each) for name, each in zip(QUARTILES, quartiles, strict=True)}


class SampleReward(_ServiceReward):
    """Rewards for a trainer that scores one response per call; it can be pickled.

    Concurrent calls are collected into batches.
    """

    def __init__(
        self, service: str, url: str | Sequence[str], column: str | None, **options: Any
    ) -> None:
        super().__init__(service, url, column, **{"coalesce_s": COALESCE_SECONDS, **options})

    async def score(self, completion: Any, row: SampleRow) -> tuple[float, Score | None]:
        """Return the reward of a response, and its score; None if the call failed.

        Args:
            completion: The response; see `completion_text`. The video service ignores it.
            row: The row of the dataset. Its other fields are read as fields of the request.

        Raises:
            InvalidRequest: The row has no such field, or it or the response has an invalid value.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        if row.get(self.truth) is None:
            raise InvalidRequest(f"no {self.truth!r}; there are: {', '.join(sorted(row))}")
        fields = fields_of(self._declared, completion, row[self.truth], row)
        try:
            score: Score = await self.client.score(**fields)
        except RewardFleetError as error:
            return self.client.policy.failed(error), None
        return self.client.policy.reward(score), score
