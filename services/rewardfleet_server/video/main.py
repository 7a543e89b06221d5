"""The video service's commands."""

from collections.abc import Sequence

from rewardfleet_server.serve import Server
from rewardfleet_server.telemetry import configure_logging

from .app import create_app
from .settings import VideoSettings


def serve(arguments: Sequence[str]) -> int:
    """`rewardfleet serve video`: run until SIGTERM."""
    settings = VideoSettings(
        _cli_parse_args=list(arguments), _cli_prog_name="rewardfleet serve video"
    )
    configure_logging(settings.log_level)
    Server(create_app(settings), settings).run()
    return 0
