"""What became of an episode: a reward, or the reason why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rewardfleet.adapters._rows import quartiles_of
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.video import VideoScore

#: ok: there is a score. abstained: the judge answered without a usable verdict. error: a failure.
#: discarded: the environment was reset before the episode had ended.
EpisodeStatus = Literal["ok", "abstained", "error", "discarded"]


class Episode(NamedTuple):
    """One episode of one environment.

    Attributes:
        environment: Index of the environment.
        episode: Index of the episode in its environment, counted from 0.
        task: The instruction; empty if it is not a text.
    """

    environment: int
    episode: int
    task: str

    def __str__(self) -> str:
        """Return the environment and the episode as text."""
        return f"environment {self.environment}, episode {self.episode}"


@dataclass(frozen=True, eq=False)
class EpisodeReward:
    """What became of one episode.

    Attributes:
        environment: Index of the environment.
        episode: Index of the episode in its environment, counted from 0.
        task: The instruction; empty if it is not a text.
        reward: The reward; unless `valid`, the fallback.
        status: See `EpisodeStatus`.
        score: The score in [0, 1], or None.
        detail: Why there is no score; names the environment and the episode.
        answer: The service's answer, or None.
        error: The failure of the request, or None.
    """

    environment: int
    episode: int
    task: str
    reward: float
    status: EpisodeStatus
    score: float | None = None
    detail: str = ""
    answer: VideoScore | None = field(default=None, repr=False)
    error: RewardFleetError | None = field(default=None, repr=False)

    @property
    def valid(self) -> bool:
        """Whether there is a score."""
        return self.status == "ok"


def episode_metrics(arrived: Sequence[EpisodeReward]) -> dict[str, float]:
    """Return what a trainer logs of the episodes that `collect` returned; none of it is NaN.

    The shares `reward/failed`, `reward/abstained` and `reward/cached`, and the quartiles of the
    scores, `reward/p0` to `reward/p100`. Discarded episodes do not count.
    """
    judged = [each for each in arrived if each.status != "discarded"]
    if not judged:
        return {}
    shares = {
        "reward/failed": [each.status == "error" for each in judged],
        "reward/abstained": [each.status == "abstained" for each in judged],
        "reward/cached": [each.answer is not None and each.answer.cached for each in judged],
    }
    metrics = {name: sum(each) / len(judged) for name, each in shares.items()}
    return metrics | quartiles_of([each.score for each in judged if each.score is not None])


class MissingRewardError(RewardFleetError):
    """A finished episode has no score. The failure of the request is its `__cause__`.

    Attributes:
        reward: The episode.
    """

    def __init__(self, reward: EpisodeReward) -> None:
        super().__init__(reward.detail)
        self.reward = reward


@dataclass(frozen=True)
class RewardStats:
    """How many episodes there were so far, by what became of them.

    Attributes:
        scored: Episodes with a score.
        abstained: Episodes on which the judge abstained.
        failed: Episodes with an error.
        discarded: Episodes that a reset ended.
        pending: Episodes whose scores have not arrived.
    """

    scored: int
    abstained: int
    failed: int
    discarded: int
    pending: int

    def metrics(self) -> dict[str, float]:
        """Return what a trainer logs: `reward/failed`, `reward/abstained` and `reward/pending`.

        The first two are shares of the episodes that have been judged; none is NaN.
        """
        judged = max(self.scored + self.abstained + self.failed, 1)
        return {
            "reward/failed": self.failed / judged,
            "reward/abstained": self.abstained / judged,
            "reward/pending": float(self.pending),
        }
