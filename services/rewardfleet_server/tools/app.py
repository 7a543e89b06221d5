"""Assembly of the tools service."""

from rewardfleet.tool_use.usage import read_families
from rewardfleet.wire.tools import ToolsRequest, ToolsScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service, run_route
from rewardfleet_server.http.trainers import TrainerApi
from rewardfleet_server.run_state import RunState, describe_run_state, open_run_state

from .api import BudgetMetrics, budget_routes, request_of
from .budgets import Budgets
from .scorer import ToolsScorer
from .settings import ToolsSettings

#: Limit on the JSON fields of a batch; labels of a row are fields.
_MAX_BATCH_FIELDS = 200_000


def create_app(settings: ToolsSettings, store: RunState | None = None) -> RewardApp:
    """Put the tools service together.

    Args:
        store: The state of training runs. None: open the one that the settings name.

    Raises:
        ValueError: The file of tool families, or the run-state store, cannot be used.
    """
    state = store or open_run_state(settings)
    families = {} if settings.tool_families is None else read_families(settings.tool_families)
    budgets, metrics = Budgets(state), BudgetMetrics()
    scorer = ToolsScorer(families, budgets)

    service = Service(
        name="tools",
        scorer=scorer,
        request_type=ToolsRequest,
        score_type=ToolsScore,
        lifespan=state.opened,
        bulk=scorer,
        max_batch_fields=_MAX_BATCH_FIELDS,
        routes=lambda engine: [
            *budget_routes(engine, budgets, metrics),
            run_route(engine, state),
            *TrainerApi(engine, ToolsRequest, request_of).routes(),
        ],
        collectors=(*metrics.collectors, state.failures),
        run_state=lambda: state.id,
        probe=state.identify,
        failure=lambda: state.failure,
        overview={"run state": describe_run_state(settings)},
    )
    return RewardApp(service, settings)
