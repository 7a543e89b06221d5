"""Which services `rewardfleet up` starts, and with which settings: defaults, a TOML file, flags."""

import itertools
import os
import secrets
import socket
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rewardfleet.wire.urls import is_loopback
from rewardfleet.wire.validation import format_validation_error
from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ServerSettings, did_you_mean, flag_of

#: The ports of further replicas of a service: that of the first one plus a multiple of this.
PORT_STEP = 10
_MAX_REPLICAS = 100
#: Ports for services whose port is 0: below those that Linux and macOS give to connections.
_LOWEST_PORT, _PORT_COUNT = 20_000, 10_000
_NUMBERS = itertools.count(secrets.randbelow(_PORT_COUNT))


class FleetConfig(BaseModel):
    """The file of `--config`, and the flags of `rewardfleet up`."""

    model_config = ConfigDict(extra="forbid")

    #: Address of the gateway. The services listen on loopback only.
    host: str = "127.0.0.1"
    port: int = Field(18000, ge=0, le=65535)
    only: list[str] = list(SERVICES)
    #: Folder with caches, run state and logs.
    data_dir: Path = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")) / "rewardfleet"
    score_log: Path | None = None  #: folder that keeps what all services have scored
    score_log_sample: float | None = None  #: as of the services
    score_log_key_file: Path | None = None  #: likewise
    api_key_file: Path | None = None  #: file of the API keys that all services accept
    #: Names by which callers may address the gateway, besides loopback names; if there are none,
    #: any with an API key, and without one, IP addresses beyond loopback.
    allowed_host: list[str] = []
    #: Whether the gateway may listen beyond loopback without API keys.
    allow_unauthenticated: bool = False
    #: Settings by service, e.g. `{"code": {"replicas": 2, "workers": 4}}`.
    settings: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class PlannedReplica:
    """A replica that will be started."""

    service: str  #: e.g. `code`
    number: int  #: counted from 0
    settings: ServerSettings
    given: Mapping[str, Any]  #: those that are passed to its process
    has_free_port: bool  #: whether its port was chosen because it was free

    @property
    def name(self) -> str:
        """Its name in logs and tables, e.g. `code-0`."""
        return f"{self.service}-{self.number}"

    @property
    def flags(self) -> list[str]:
        """The arguments of `rewardfleet serve`."""
        arguments: list[str] = []
        for name, value in self.given.items():
            values = value if isinstance(value, list | tuple) else [value]
            if name in {*self.settings.flags, "set"}:
                arguments += [part for each in values for part in (flag_of(name), str(each))]
            else:
                arguments += ["--set", f"{name}={','.join(map(str, values))}"]
        return arguments

    def on_another_port(self) -> "PlannedReplica":
        """Return the same replica on another free port."""
        port = free_port()
        settings = self.settings.model_copy(update={"port": port})
        return replace(self, settings=settings, given={**self.given, "port": port})


def read_config(path: Path | None, overrides: Mapping[str, Any]) -> FleetConfig:
    """Read the TOML file of a fleet; None: the defaults. Flags, in its form, take precedence.

    Raises:
        ValueError: The file or a value is not valid.
    """
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"--config {path}: {error}") from None
    tables = {name: content.pop(name, {}) for name in SERVICES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            reason = f"give a table [{name}] with settings (got {table!r})"
            raise ValueError(f"{name}: {reason}")  # noqa: TRY004 - like that of other settings
    settings = {name: {**table, **overrides.get(name, {})} for name, table in tables.items()}
    given = {name: value for name, value in overrides.items() if not isinstance(value, dict)}
    try:
        config = FleetConfig.model_validate({**content, **given, "settings": settings})
    except ValidationError as error:
        source = f"--config {path}: " if path is not None else ""
        raise ValueError(f"{source}{format_validation_error(error, FleetConfig)}") from None
    for name in config.only:
        if name not in SERVICES:
            services = f"{did_you_mean(name, SERVICES)}; there are {', '.join(SERVICES)}"
            raise ValueError(f"--only {name}: no such service{services}")
    for name in overrides:
        if isinstance(overrides[name], dict) and name not in config.only:
            flags, services = ", ".join(overrides[name]), ", ".join(config.only)
            raise ValueError(f"{flags} of {name}: give it for one of the services {services}")
    if not (is_loopback(config.host) or config.api_key_file or config.allow_unauthenticated):
        raise ValueError(
            f"--host {config.host} makes the fleet reachable from other machines: give "
            "--api-key-file, or allow_unauthenticated in --config if anyone who reaches it may"
        )
    return config


def plan(config: FleetConfig) -> list[PlannedReplica]:
    """Return the replicas to start; ValueError if a setting is unknown or not accepted."""
    return [replica for name in dict.fromkeys(config.only) for replica in _replicas(config, name)]


def _replicas(config: FleetConfig, service: str) -> Iterable[PlannedReplica]:
    settings_type = SERVICES[service].settings.load()
    own = dict(config.settings.get(service, {}))
    count = own.pop("replicas", 1)
    if not (isinstance(count, int) and 1 <= count <= _MAX_REPLICAS):
        raise ValueError(f"replicas of {service}: give 1 to {_MAX_REPLICAS} (got {count!r})")
    if "host" in own:
        reason = "services listen on loopback only; give `host` of the gateway"
        raise ValueError(f"[{service}] host: {reason}")
    fields = settings_type.model_fields
    for name in own:
        if name not in fields:
            raise ValueError(f"[{service}] {name}: no such setting{did_you_mean(name, fields)}")
    first_port = own.pop("port", fields["port"].default)
    for number in range(count):
        given: dict[str, Any] = {**_defaults(config, service, count), **own}
        given["port"] = first_port + PORT_STEP * number if first_port else free_port()
        try:
            settings = read_settings(settings_type, given)
        except ValueError as error:
            raise ValueError(f"[{service}] {error}") from None
        yield PlannedReplica(service, number, settings, given, has_free_port=not first_port)


def free_port() -> int:
    """Return a TCP port of loopback that is free now, and another one each time; OSError for none.

    No outgoing connection gets it, so that it is still free when a service starts or restarts.
    """
    for number in itertools.islice(_NUMBERS, _PORT_COUNT):
        port = _LOWEST_PORT + number % _PORT_COUNT
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"no port from {_LOWEST_PORT} to {_LOWEST_PORT + _PORT_COUNT - 1} is free")


def _defaults(config: FleetConfig, service: str, count: int) -> dict[str, Any]:
    """Return what the file does not say: stores on disk, and who may use the services."""
    folder, fields = config.data_dir.expanduser(), SERVICES[service].settings.load().model_fields
    shared = ("api_key_file", "score_log", "score_log_sample", "score_log_key_file")
    given = {name: each for name in shared if (each := getattr(config, name)) is not None}
    if "run_state" in fields:
        given |= {"replicas": count, "run_state": folder / "run-state.sqlite"}
    if "cache" in fields:
        given["cache"] = folder / f"{service}-cache.sqlite"
    return given
