"""What services with run state share: attempts of a run, and stores of replicas."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from .errors import Conflict
from .score import MAX_NAME, Response

#: Names a start of a training run, in calls that change the run's state.
ATTEMPT: Any = Field(
    None,
    max_length=MAX_NAME,
    description="Which start of the training run this is: any text, the same in all processes. The "
    "first call of a new attempt discards what the run has from its step on.",
)


class DeletedRun(Response):
    """`DELETE /runs/{run}`."""

    run: str = Field(description="The training run.")
    was_stored: bool = Field(description="Whether anything of it was stored.")


def own_run_states(service: str, ids: Mapping[str, str]) -> Conflict | None:
    """Return why replicas cannot be used together, by the id of the store of each URL, if known."""
    if len({each for each in ids.values() if each}) < 2:
        return None
    return Conflict(
        f"the replicas of the {service} service have run state of their own, so groups, statistics "
        f"and budgets would be wrong: {', '.join(ids)}; give all of them one store, e.g. "
        "--run-state redis://127.0.0.1:6379/0"
    )
