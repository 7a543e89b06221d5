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

from .groups import Group, GroupKey, add_to_group
from .settings import RunStateSettings
from .sqlite import SqliteStore
from .state import RunState
from .store import Damaged, Scope, Shape, Store
from .values import Call

__all__ = [
    "Call",
    "Damaged",
    "Group",
    "GroupKey",
    "RunState",
    "Scope",
    "Shape",
    "add_to_group",
    "describe_run_state",
    "open_run_state",
]


def open_run_state(settings: RunStateSettings) -> RunState:
    """Open the store that the settings name.

    Raises:
        ValueError: The file is damaged, of an earlier version or cannot be opened, the URL is
            wrong, or the `redis` package is missing. The message names the flag.
    """
    place = settings.run_state or ":memory:"
    return RunState(_open_redis(place) if is_url(place) else _open_file(Path(place)))


def describe_run_state(settings: RunStateSettings) -> str:
    """Return where the state is stored, for the overview at startup."""
    return "Redis" if is_url(settings.run_state) else settings.run_state or ":memory:"


def _open_redis(url: str) -> Store:
    from .redis import RedisStore  # noqa: PLC0415 - only services that share a store need it

    source = f"--run-state {redact(url)}"
    require("redis", source, "redis")
    try:
        return RedisStore(url)
    except ValueError:  # whose message may contain a part of the password
        raise ValueError(f"{source}: give a URL such as redis://127.0.0.1:6379/0") from None


def _open_file(path: Path) -> Store:
    if not path.parent.is_dir():
        raise ValueError(f"--run-state {path}: no such directory: {path.parent}")
    try:
        return SqliteStore(path)
    except Unavailable as error:
        raise ValueError(f"--run-state {path}: {error.detail}") from error
