"""The code service's command."""

from collections.abc import Sequence

from rewardfleet_server.serve import Server
from rewardfleet_server.telemetry import configure_logging

from .app import create_app
from .settings import CodeSettings


def serve(arguments: Sequence[str]) -> int:
    """`rewardfleet serve code`: run until SIGTERM."""
    settings = CodeSettings(
        _cli_parse_args=list(arguments), _cli_prog_name="rewardfleet serve code"
    )
    configure_logging(settings.log_level)
    Server(create_app(settings), settings).run()
    return 0
