"""What became of an episode: a reward, or the reason why there is none."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
