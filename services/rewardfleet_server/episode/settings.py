"""The settings of the episode service."""

from pathlib import Path

from rewardfleet_server.settings import ServerSettings, setting


class EpisodeSettings(ServerSettings):
    """`rewardfleet serve episode`."""

    most_used = (
        "port", "run_state_file", "host", "api_key_file", "max_body_mb",
        "max_in_flight", "max_queue_depth", "deadline_s", "shutdown_timeout_s", "log_level",
    )  # fmt: skip

    # One line per setting.
    # fmt: off
    port: int = setting(18082, "TCP port to listen on. 0 picks a free port and prints it.", ge=0, le=65535, metavar="PORT", group="Network")
    run_state_file: Path = setting(Path(":memory:"), "SQLite file for the state of training runs: running means, temperatures, incomplete groups. Default: lost with the process.", shown="none", group="Run state")
    # fmt: on
