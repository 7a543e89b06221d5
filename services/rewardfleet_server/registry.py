"""The services. Adding one means adding its folder and an entry here."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .settings import ServerSettings


@dataclass(frozen=True)
class ServiceEntry:
    """How a service is found. Its modules are imported when it is asked for, and not before.

    Attributes:
        description: One sentence for the command's help.
        settings: Its `ServerSettings`, as `module:attribute`.
        app: What makes its application from its settings, likewise.
        checks: What `rewardfleet doctor` checks for it, likewise, or None.
    """

    description: str
    settings: str
    app: str
    checks: str | None = None

    def load_settings(self) -> type[ServerSettings]:
        """Import the class of its settings."""
        settings: type[ServerSettings] = load_attribute(self.settings)
        return settings

    def load_app(self) -> Callable[[Any], Any]:
        """Import the function that makes its application."""
        create_app: Callable[[Any], Any] = load_attribute(self.app)
        return create_app


SERVICES: dict[str, ServiceEntry] = {
    "video": ServiceEntry(
        "Score robot rollouts from video, by a vision-language model or a reference library.",
        "rewardfleet_server.video.settings:VideoSettings",
        "rewardfleet_server.video.app:create_app",
        "rewardfleet_server.video.doctor:checks",
    ),
    "code": ServiceEntry(
        "Score programs by running them against tests in a sandbox.",
        "rewardfleet_server.code.settings:CodeSettings",
        "rewardfleet_server.code.app:create_app",
        "rewardfleet_server.code.doctor:checks",
    ),
    "episode": ServiceEntry(
        "Turn rollout batches into rewards, group statistics and temperatures.",
        "rewardfleet_server.episode.settings:EpisodeSettings",
        "rewardfleet_server.episode.app:create_app",
    ),
}


def load_attribute(target: str) -> Any:
    """Import what `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
