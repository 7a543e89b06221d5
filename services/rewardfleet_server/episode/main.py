"""The episode service's command."""

from collections.abc import Sequence

from rewardfleet_server.serve import Server
from rewardfleet_server.telemetry import configure_logging

from .app import create_app
from .settings import EpisodeSettings


def serve(arguments: Sequence[str]) -> int:
    """`rewardfleet serve episode`: run until SIGTERM."""
    settings = EpisodeSettings(
        _cli_parse_args=list(arguments), _cli_prog_name="rewardfleet serve episode"
    )
    configure_logging(settings.log_level)
    Server(create_app(settings), settings).run()
    return 0
