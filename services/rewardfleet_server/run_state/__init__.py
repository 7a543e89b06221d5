"""The state of training runs: running means, temperatures, incomplete groups.

A trainer that crashed sends its last step again. So every transition is named by (scope, step,
uid) and applied once: a repeated call returns the outcome of the first one.
"""

from pathlib import Path

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.settings import redact
from rewardfleet_server.system.optional_imports import require

from .groups import Group, GroupKey, Groups, NewMember, Release, Rules
from .settings import RunStateSettings
from .sqlite import SqliteRunState
from .store import KEEP_STEPS, NO_SHAPES, Damaged, RunState, Scope, Shape, Shapes, Transition

__all__ = [
    "KEEP_STEPS",
    "Damaged",
    "Group",
    "GroupKey",
    "Groups",
    "NewMember",
    "Release",
    "Rules",
    "RunState",
    "Scope",
    "Shape",
    "Shapes",
    "SqliteRunState",
    "Transition",
    "describe_run_state",
    "open_run_state",
]


def open_run_state(settings: RunStateSettings, shapes: Shapes = NO_SHAPES) -> RunState:
    """Open the store that the settings name.

    A Redis server that does not respond is a warning in the log: calls that need it fail until it
    does.

    Args:
        settings: The settings.
        shapes: What the features of the service store.

    Raises:
        ValueError: The file is damaged or cannot be opened, the URL is wrong, or the `redis`
            package is missing. The message names the flag.
    """
    if settings.run_state_url is not None:
        return _open_redis(settings.run_state_url, shapes, settings.run_state_max_age_days)
    return _open_file(settings.run_state_file, shapes, settings.run_state_max_age_days)


def describe_run_state(settings: RunStateSettings) -> str:
    """Return where the state is stored, for the overview at startup."""
    return "Redis" if settings.run_state_url is not None else str(settings.run_state_file)


def _open_redis(url: str, shapes: Shapes, max_age_days: float) -> RunState:
    from .redis import RedisRunState  # noqa: PLC0415 - only services that share a store need it

    source = f"--run-state-url {redact(url)}"
    require("redis", source, "redis")
    try:
        return RedisRunState(url, shapes, max_age_days=max_age_days)
    except ValueError:  # whose message may contain a part of the password
        raise ValueError(f"{source}: give a URL such as redis://127.0.0.1:6379/0") from None


def _open_file(path: Path, shapes: Shapes, max_age_days: float) -> RunState:
    if not path.parent.is_dir():
        raise ValueError(f"--run-state-file {path}: no such directory: {path.parent}")
    try:
        return SqliteRunState(path, shapes, max_age_days=max_age_days)
    except Unavailable as error:
        raise ValueError(f"--run-state-file {path}: {error.detail}") from error
