"""`DELETE /runs/{run}`, of each service with run state."""

from typing import Any

from pydantic import BaseModel

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.run_state import DeletedRun
from rewardfleet.wire.score import MAX_NAME
from rewardfleet_server.engine import Engine
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.run_state import RunState

from .routes import Route


def run_route(engine: Engine[Any, Any], state: RunState) -> Route[Any]:
    """Return the route that deletes what is stored of a run."""

    async def delete(_: None, context: RequestContext) -> BaseModel:
        run = run_of(context)
        async with engine.permit(context):
            return DeletedRun(run=run, was_stored=await state.delete(run))

    description = "Delete the budget, groups, statistics and temperatures of a run"
    return Route(
        "/runs/{run}", description, None, DeletedRun, delete, method="DELETE", scores=False
    )


def run_of(context: RequestContext) -> str:
    """Return the run that a path names."""
    run = context.parameters["run"]
    if len(run) > MAX_NAME:
        raise InvalidRequest(f"run: give a name of at most {MAX_NAME} characters")
    return run
