"""The state of training runs: running means, temperatures, incomplete groups.

A trainer that crashed sends its last step again. So every transition is named by (scope, step,
uid) and applied once: a repeated call returns the outcome of the first one, and one with other
content is refused. A new attempt of a run discards what came after the step at which it begins.
"""

from pathlib import Path

from rewardfleet.wire.errors import Unavailable
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.urls import redact
from rewardfleet_server.settings import is_url

from .groups import Group, GroupKey
from .settings import RunStateSettings
from .sqlite import SqliteStore
from .state import RunState
from .store import Call, Damaged, Scope, Shape

__all__ = [
    "Call",
    "Damaged",
    "Group",
    "GroupKey",
    "RunState",
    "Scope",
    "Shape",
    "describe_run_state",
    "open_run_state",
]


def open_run_state(settings: RunStateSettings) -> RunState:
    """Open the store that the settings name.

    Raises:
        ValueError: The file is damaged, of an earlier version or cannot be opened, the URL is
            wrong, or the `redis` package is missing. The message names the flag.
    """
    if not is_url(settings.run_state):
        path = Path(settings.run_state or ":memory:")
        if not path.parent.is_dir():
            raise ValueError(f"--run-state {path}: no such directory: {path.parent}")
        try:
            return RunState(SqliteStore(path))
        except Unavailable as error:
            raise ValueError(f"--run-state {path}: {error.detail}") from error
    from .redis import RedisStore  # noqa: PLC0415 - only services that share a store need it

    url = str(settings.run_state)
    source = f"--run-state {redact(url)}"
    require("redis", source, "redis")
    try:
        return RunState(RedisStore(url))
    except ValueError:  # whose message may contain a part of the password
        raise ValueError(f"{source}: give a URL such as redis://127.0.0.1:6379/0") from None


def describe_run_state(settings: RunStateSettings) -> str:
    """Return where the state is stored, for the overview at startup."""
    return "Redis" if is_url(settings.run_state) else settings.run_state or ":memory:"
