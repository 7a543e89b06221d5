"""Assembly of the episode service."""

from rewardfleet.wire.episode import EpisodeRequest, EpisodeScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service, run_route
from rewardfleet_server.run_state import describe_run_state, open_run_state

from .api import EpisodeApi, EpisodeScorer, TemperatureMetrics
from .settings import EpisodeSettings


def create_app(settings: EpisodeSettings) -> RewardApp:
    """Put the episode service together.

    Raises:
        ValueError: The run-state store cannot be opened; the message names the flag.
    """
    state = open_run_state(settings)
    metrics = TemperatureMetrics()

    service = Service(
        name="episode",
        scorer=EpisodeScorer(),
        request_type=EpisodeRequest,
        score_type=EpisodeScore,
        lifespan=state.opened,
        routes=lambda engine: [
            *EpisodeApi(engine, state, metrics).routes(),
            run_route(engine, state),
        ],
        collectors=(*metrics.collectors, state.failures),
        run_state=lambda: state.id,
        probe=state.identify,
        failure=lambda: state.failure,
        overview={"run state": describe_run_state(settings)},
    )
    return RewardApp(service, settings)
