"""What the episode service can be told."""

from pathlib import Path

from pydantic import Field

from rewardfleet_server.settings import ServerSettings


class EpisodeSettings(ServerSettings):
    """`rewardfleet serve episode`."""

    # One line a setting: its unit, and why one would change it.
    # fmt: off
    port: int = Field(18082, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one and prints it.")
    run_state_file: Path = Field(Path(":memory:"), description="SQLite file of what is remembered of training runs: running means, temperatures, half groups. Default: nothing outlives the process.")
    # fmt: on
