"""The settings of the episode service."""

from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.settings import setting


class EpisodeSettings(RunStateSettings):
    """`rewardfleet serve episode`."""

    most_used = (
        "port", "run_state_file", "run_state_url", "replicas", "host", "api_key_file",
        "max_in_flight", "deadline_s", "shutdown_timeout_s", "log_level",
    )  # fmt: skip

    # fmt: off
    port: int = setting(18082, "TCP port to listen on. 0 picks a free port and prints it.", ge=0, le=65535, metavar="PORT", group="Network")
    # fmt: on
