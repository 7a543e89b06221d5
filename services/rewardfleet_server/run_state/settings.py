"""The settings of services that store the state of training runs."""

from typing import Self

from pydantic import PositiveInt, model_validator

from rewardfleet_server.settings import ServerSettings, Store, setting


class RunStateSettings(ServerSettings):
    """The settings of a service with a run-state store."""

    flags = (*ServerSettings.flags, "run_state", "replicas")

    # One line per setting.
    # fmt: off
    run_state: Store = setting(None, "State of training runs (running means, temperatures, groups, budgets): a SQLite file, or redis://HOST:6379/0, which replicas share. Default: lost with the process.", metavar="FILE|URL")
    replicas: PositiveInt = setting(1, "Replicas of this service behind one address. They must share --run-state.")
    # fmt: on

    @model_validator(mode="after")
    def _replicas_share_a_store(self) -> Self:
        if self.replicas > 1 and self.run_state is None:
            raise ValueError(
                f"--replicas {self.replicas}: replicas must share the state of training runs: give "
                "--run-state redis://HOST:6379/0, or a file if all of them are on this machine"
            )
        return self
