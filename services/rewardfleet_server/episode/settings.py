"""The settings of the episode service."""

from rewardfleet.services import SERVICES
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.settings import setting


class EpisodeSettings(RunStateSettings):
    """`rewardfleet serve episode`."""

    most_used = (
        "port", "run_state", "replicas", "host", "api_key_file", "allowed_host",
        "max_in_flight", "deadline_s", "shutdown_timeout_s", "log_level",
    )  # fmt: skip

    # fmt: off
    port: int = setting(SERVICES["episode"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT", group="Network")
    # fmt: on
