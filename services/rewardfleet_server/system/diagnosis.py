"""What the checks of `rewardfleet doctor` and `rewardfleet up` find; packages and Redis."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from rewardfleet.wire.optional_imports import install_command, missing_modules
from rewardfleet.wire.urls import redact
from rewardfleet_server.settings import ENV_PREFIX, ServerSettings, is_url

from .redis_server import unreachable_reason

#: Seconds to wait for Redis.
_TIMEOUT_SECONDS = 1.0
#: The settings that may be the URL of a Redis server, and what it stores.
_REDIS_PURPOSES = {"cache": "cache", "run_state": "run state"}


class Diagnosis(NamedTuple):
    """The result of one check."""

    #: `ok`: it works. `extra`: packages that the settings do not need are missing. `note`:
    #: something to know. `failed`: a service cannot run as it is configured.
    status: Literal["ok", "extra", "note", "failed"]
    what: str  #: what was checked
    fix: str = ""  #: a command or an instruction that fixes it; empty if there is nothing to fix


def check_extra(extra: str, purpose: str, *modules: str, required: bool = False) -> Diagnosis:
    """Check whether the packages of an extra are installed, which the settings may require."""
    missing = missing_modules(*modules)
    if not missing:
        return Diagnosis("ok", f"{purpose}: {', '.join(modules)}")
    what = f"{purpose}: {', '.join(missing)} not installed"
    return Diagnosis("failed" if required else "extra", what, install_command(extra))


def check_redis_servers(
    settings: Iterable[ServerSettings], *, unreachable: Literal["failed", "note"]
) -> Iterator[Diagnosis]:
    """Check whether each Redis server of some services answers, and what it means if not.

    The services start all the same, and replicas share nothing.
    """
    urls = {
        (name, str(url)): None
        for each in settings
        for name in _REDIS_PURPOSES
        if is_url(url := getattr(each, name, None))
    }
    for name, url in urls:
        what = f"{_REDIS_PURPOSES[name]} that replicas share: {redact(url)}"
        package = check_extra("redis", what, "redis", required=True)
        if package.status != "ok":
            yield package
            continue
        try:
            reason = unreachable_reason(url, _TIMEOUT_SECONDS)
        except ValueError:  # whose message may contain a part of the password
            reason = "not a URL such as redis://127.0.0.1:6379/0"
        if reason is None:
            yield Diagnosis("ok", f"{what} answers")
        else:
            fix = f"start a Redis server there, or correct {ENV_PREFIX}{name.upper()}"
            yield Diagnosis(unreachable, f"{what}: {reason}", fix)
