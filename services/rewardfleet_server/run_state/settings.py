"""The settings of services that store the state of training runs."""

from pathlib import Path
from typing import Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from rewardfleet_server.settings import ServerSettings, setting

from .store import MAX_AGE_DAYS


class RunStateSettings(ServerSettings):
    """The settings of a service with a run-state store."""

    # One line per setting.
    # fmt: off
    run_state_file: Path = setting(Path(":memory:"), "SQLite file for the state of training runs: running means, temperatures, incomplete groups, budgets. Default: lost with the process.", shown="none", group="Run state")
    run_state_url: str | None = setting(None, "Redis server with the state of training runs, which replicas share, e.g. redis://127.0.0.1:6379/0. Replaces --run-state-file.", group="Run state")
    run_state_max_age_days: PositiveFloat = setting(MAX_AGE_DAYS, "Days after which a training run that no call has changed is deleted.", metavar="DAYS", group="Run state")
    replicas: PositiveInt = setting(1, "Replicas of this service behind one address. With more than one, the state of training runs must be in a store that they share: --run-state-url, or --run-state-file on the same machine.", group="Run state")
    # fmt: on

    @model_validator(mode="after")
    def _replicas_share_a_store(self) -> Self:
        is_shared = self.run_state_url is not None or str(self.run_state_file) != ":memory:"
        if self.replicas > 1 and not is_shared:
            raise ValueError(
                f"--replicas {self.replicas}: replicas must share the state of training runs: give "
                "--run-state-url, or --run-state-file if all of them are on this machine"
            )
        return self
