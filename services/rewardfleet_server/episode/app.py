"""Assembly of the episode service."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from rewardfleet.wire.episode import EpisodeRequest, EpisodeScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.app import create_app as create_reward_app
from rewardfleet_server.http.routes import Service
from rewardfleet_server.run_state import RunState, SqliteRunState

from .api import EpisodeApi, TemperatureMetrics
from .scorer import EpisodeScorer
from .settings import EpisodeSettings


def create_app(settings: EpisodeSettings, store: RunState | None = None) -> RewardApp:
    """Put the episode service together.

    Args:
        settings: Its settings.
        store: The state of training runs. None: open the file that the settings name.

    Raises:
        Unavailable: The run-state file is damaged or cannot be opened.
    """
    store = store or SqliteRunState(settings.run_state_file)
    return create_reward_app(episode_service(settings, store), settings)


def episode_service(
    settings: EpisodeSettings, store: RunState
) -> Service[EpisodeRequest, EpisodeScore]:
    """Return what the episode service provides."""
    metrics = TemperatureMetrics()
    thread = ThreadPoolExecutor(1, thread_name_prefix="episodes")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            yield
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
            await store.aclose()

    return Service(
        name="episode",
        description="Turns rollout batches into rewards, group statistics and temperatures.",
        scorer=EpisodeScorer(),
        request_type=EpisodeRequest,
        score_type=EpisodeScore,
        lifespan=lifespan,
        routes=lambda engine: EpisodeApi(engine, store, metrics, thread).routes(),
        collectors=metrics.collectors,
        overview={"run state": str(settings.run_state_file)},
    )
