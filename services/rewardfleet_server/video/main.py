"""The video service's commands."""

from collections.abc import Sequence
from typing import Any

from rewardfleet_server.serve import Server
from rewardfleet_server.telemetry import configure_logging

from .app import create_app
from .references import library as library_module
from .settings import VideoSettings


def serve(arguments: Sequence[str]) -> int:
    """`rewardfleet serve video`: run until SIGTERM."""
    settings = VideoSettings(
        _cli_parse_args=list(arguments), _cli_prog_name="rewardfleet serve video"
    )
    configure_logging(settings.log_level)
    server = Server(create_app(settings), settings)
    server.run()
    return 0 if server.failure is None else 1


def add_reference(arguments: Sequence[Any]) -> int:
    """`rewardfleet references add`."""
    library, clip, task_text, success, success_frame = arguments
    entry = library_module.add_reference(
        library, clip, task_text, success=success, success_frame=success_frame
    )
    print(f"{library}: added {entry.file} as a {'success' if success else 'failure'}")
    return 0
