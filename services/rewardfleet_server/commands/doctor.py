"""`rewardfleet doctor`: what works on this machine, and how to fix the rest."""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import httpx

from rewardfleet import __version__
from rewardfleet.wire.headers import SERVICE_HEADER
from rewardfleet_server.flags import read_settings, unknown_variable_warnings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.serve import bind
from rewardfleet_server.settings import ENV_PREFIX, ServerSettings, is_url, redact
from rewardfleet_server.system.optional_imports import install_command
from rewardfleet_server.system.redis_server import unreachable_reason

#: Seconds to wait for another server on this machine, or for Redis.
_TIMEOUT_SECONDS = 1.0
#: The settings that may be the URL of a Redis server, and what it stores.
_REDIS_PURPOSES = {
    "cache": "cache that replicas share",
    "run_state": "run state that replicas share",
}


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    Attributes:
        status: `ok`: it works. `extra`: packages that the settings do not need are missing.
            `note`: something to know. `failed`: a service cannot run as it is configured.
        what: What was checked.
        fix: A command or an instruction that fixes it; empty if there is nothing to fix.
    """

    status: Literal["ok", "extra", "note", "failed"]
    what: str
    fix: str = ""


def run_doctor() -> int:
    """Check the services with the settings of the environment, and print the results.

    Returns:
        The exit status: 1 if a service cannot run as it is configured.
    """
    has_failed = False
    for diagnosis in _diagnoses():
        has_failed = has_failed or diagnosis.status == "failed"
        print(f"{diagnosis.status:8}{diagnosis.what}")
        if diagnosis.fix:
            print(f"        fix: {diagnosis.fix}")
    return int(has_failed)


def check_extra(extra: str, purpose: str, *modules: str, required: bool = False) -> Diagnosis:
    """Check whether the packages of an extra are installed.

    Args:
        extra: The name of the extra.
        purpose: What needs it.
        modules: The modules of its packages.
        required: Whether the settings need it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return Diagnosis("ok", f"{purpose}: {', '.join(modules)}")
    what = f"{purpose}: {', '.join(missing)} not installed"
    return Diagnosis("failed" if required else "extra", what, install_command(extra))


def _diagnoses() -> Iterator[Diagnosis]:
    version = platform.python_version()
    yield Diagnosis("ok", f"rewardfleet {__version__}, Python {version} ({sys.executable})")
    settings_of: dict[str, ServerSettings] = {}
    for name, entry in SERVICES.items():
        try:
            settings_of[name] = read_settings(entry.load_settings(), {})
        except ValueError as error:
            fix = "correct the value, or unset the environment variable"
            yield Diagnosis("failed", f"{name}: {error}", fix)
    servers = list(check_redis_servers(settings_of.values(), unreachable="failed"))
    if not servers:
        what = "cache or run state that replicas share (--cache, --run-state)"
        yield check_extra("redis", what, "redis")
        if shutil.which("redis-server") is None:
            what = "no Redis server on this machine for --cache or --run-state"
            yield Diagnosis("note", what, "apt-get install redis-server")
    yield from servers
    for name, settings in settings_of.items():
        yield from SERVICES[name].load_checks()(settings)
        yield _check_port(name, settings)
    for warning in unknown_variable_warnings(each.load_settings() for each in SERVICES.values()):
        variable = next(word for word in warning.split() if word.startswith(ENV_PREFIX))
        yield Diagnosis("note", warning, f"unset {variable}")


def check_redis_servers(
    settings: Iterable[ServerSettings], *, unreachable: Literal["failed", "note"]
) -> Iterator[Diagnosis]:
    """Check whether each Redis server of some services answers.

    Args:
        settings: Those of the services.
        unreachable: The status if it does not: services start, and replicas share nothing.
    """
    urls = {
        (name, str(url)): None
        for each in settings
        for name in _REDIS_PURPOSES
        if is_url(url := getattr(each, name, None))
    }
    for name, url in urls:
        yield _check_redis(name, url, unreachable)


def _check_redis(setting: str, url: str, unreachable: Literal["failed", "note"]) -> Diagnosis:
    what = f"{_REDIS_PURPOSES[setting]}: {redact(url)}"
    package = check_extra("redis", what, "redis", required=True)
    if package.status != "ok":
        return package
    try:
        reason = unreachable_reason(url, _TIMEOUT_SECONDS)
    except ValueError:  # whose message may contain a part of the password
        reason = "not a URL such as redis://127.0.0.1:6379/0"
    if reason is None:
        return Diagnosis("ok", f"{what} answers")
    fix = f"start a Redis server there, or correct {ENV_PREFIX}{setting.upper()}"
    return Diagnosis(unreachable, f"{what}: {reason}", fix)


def _check_port(name: str, settings: ServerSettings) -> Diagnosis:
    """Check whether the address can be bound; if not, find out which service listens there."""
    address = f"{settings.host}:{settings.port}"
    try:
        bind(settings).close()
    except ValueError as error:
        found = _service_at(settings.host, settings.port)
        if found == name:
            return Diagnosis("note", f"{name}: {address}: the {name} service is running")
        occupant = f"{address}: the {found} service is running there" if found else str(error)
        return Diagnosis("note", f"{name}: {occupant}", f"rewardfleet serve {name} --port 0")
    return Diagnosis("ok", f"{name}: {address} is free")


def _service_at(host: str, port: int) -> str | None:
    """Return the name of the rewardfleet service at an address; None if it is not one."""
    url = httpx.URL(scheme="http", host=host, port=port)
    try:
        with httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            name: str | None = client.get(url).headers.get(SERVICE_HEADER)
            return name
    except httpx.HTTPError:
        return None
