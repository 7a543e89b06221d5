"""The settings of the episode service."""

from rewardfleet.services import SERVICES
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.settings import setting


class EpisodeSettings(RunStateSettings):
    """`rewardfleet serve episode`."""

    # fmt: off
    port: int = setting(SERVICES["episode"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT")
    # fmt: on
