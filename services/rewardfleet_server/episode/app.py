"""Assembly of the episode service."""

from rewardfleet.wire.episode import (
    CollectAnswer,
    CollectRequest,
    EpisodeAnswer,
    EpisodeBatch,
    EpisodeRequest,
    EpisodeScore,
    TemperaturesAnswer,
    TemperaturesRequest,
)
from rewardfleet_server.app import RewardApp, Service, WholeEndpoint
from rewardfleet_server.app import create_app as create_reward_app
from rewardfleet_server.runstate import RunState, SqliteRunState

from .scorer import EpisodeScorer
from .settings import EpisodeSettings

#: For so many steps the answers of a run's groups are known. Trainers that overlap rollouts with
#: training are a few steps apart.
_GROUP_STEPS = 16


def create_app(settings: EpisodeSettings, store: RunState | None = None) -> RewardApp:
    """Put the episode service together.

    Args:
        settings: What it was told.
        store: What is remembered of training runs; by default the file that the settings name.

    Raises:
        Unavailable: The run-state file is damaged or cannot be opened.
    """
    stores = [store, store] if store else _open(settings)
    scorer = EpisodeScorer(*stores)

    async def aclose() -> None:
        scorer.close()
        for each in dict.fromkeys(stores):
            await each.aclose()

    service = Service(
        name="episode",
        about="A rollout batch goes in; rewards, groups and whom to train on come out.",
        scorer=scorer,
        request_type=EpisodeRequest,
        score_type=EpisodeScore,
        aclose=aclose,
        whole_endpoints=(
            WholeEndpoint(
                "/score/batch",
                "Score a rollout batch with its groups",
                EpisodeBatch,
                EpisodeAnswer,
                scorer.batch,
            ),
            WholeEndpoint(
                "/collect",
                "Add one episode to its group; ask again until the group is released",
                CollectRequest,
                CollectAnswer,
                scorer.collect,
            ),
            WholeEndpoint(
                "/temperatures",
                "The temperature of each sample of a prompt",
                TemperaturesRequest,
                TemperaturesAnswer,
                scorer.temperatures,
            ),
        ),
        metrics=scorer.metrics.collectors,
    )
    return create_reward_app(service, settings)


def _open(settings: EpisodeSettings) -> list[RunState]:
    """Open the file twice: members of groups are large, and soon of no use to anybody."""
    file = settings.run_state_file
    return [SqliteRunState(file), SqliteRunState(file, keep_steps=_GROUP_STEPS)]
