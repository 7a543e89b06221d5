"""`rewardfleet doctor`: what works on this machine, and how to fix the rest."""

import importlib.util
import platform
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rewardfleet import __version__

from .extras import install_command
from .flags import unknown_variable_warnings
from .registry import SERVICES, load_attribute


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        status: `missing` is an optional part, `failed` one that a service needs.
        what: What was checked.
        fix: How to fix it; empty if there is nothing to fix.
    """

    status: Literal["ok", "missing", "failed"]
    what: str
    fix: str = ""


def run_doctor() -> int:
    """Print all checks; return 1 if a service cannot run."""
    failed = False
    for check in _all_checks():
        failed = failed or check.status == "failed"
        print(f"{check.status:8}{check.what}")
        if check.fix:
            print(f"        fix: {check.fix}")
    return int(failed)


def check_extra(extra: str, purpose: str, *modules: str) -> Check:
    """Check whether the packages of an extra are installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return Check("ok", f"{purpose}: {', '.join(modules)}")
    return Check("missing", f"{purpose}: no {', '.join(missing)}", install_command(extra))


def _all_checks() -> Iterator[Check]:
    version = platform.python_version()
    yield Check("ok", f"rewardfleet {__version__}, Python {version} ({sys.executable})")
    yield check_extra("redis", "cache that replicas share (--cache-url)", "redis")
    if shutil.which("redis-server"):
        yield Check("ok", "a Redis server on this machine: redis-server")
    else:
        yield Check("missing", "a Redis server on this machine", "apt-get install redis-server")
    for name, entry in SERVICES.items():
        if entry.checks is not None:
            checks: Iterable[Check] = load_attribute(entry.checks)()
            yield from checks
        yield _port_check(name, entry.load_settings().model_fields["port"].default)
    for warning in unknown_variable_warnings(each.load_settings() for each in SERVICES.values()):
        yield Check("failed", warning, "unset it, or correct its name")


def _port_check(service: str, port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            what = f"{service}: port {port} is occupied ({error.strerror})"
            return Check("missing", what, f"rewardfleet serve {service} --port N")
    return Check("ok", f"{service}: port {port} is free")
