"""The settings of all services. Only `settings.py` files read the environment.

Each field is a flag (`--max-queue-depth 100`) and an environment variable
(`REWARDFLEET_MAX_QUEUE_DEPTH=100`); the flag takes precedence.
"""

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, FilePath, PositiveInt, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

#: Starts the environment variable of each setting.
ENV_PREFIX = "REWARDFLEET_"

#: Environment variables that are read, but are not settings of a service.
OTHER_VARIABLES = frozenset({"API_KEY", "URL", "VIDEO_URL", "ENGINE_PROCESS"})


def setting(
    default: Any = None,
    help_text: str = "",
    *,
    group: str = "Other",
    shown: str | None = None,
    metavar: str | None = None,
    other_flag: str | None = None,
    read_by: tuple[str, ...] = (),
    **constraints: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: Its default.
        help_text: What it is, its unit, and why one would change it.
        group: The heading under which the command's help lists it.
        shown: The default as documentation shows it, if that is not its value.
        metavar: The name of its value in help, if neither its type nor its name gives one.
        other_flag: Another spelling of its flag.
        read_by: The judges or sandboxes that read it, see `ServerSettings.readers`; empty if the
            service itself does.
        constraints: Of `pydantic.Field`.
    """
    extra: dict[str, Any] = {
        "group": group, "shown": shown, "metavar": metavar, "other_flag": other_flag,
        "read_by": list(read_by),
    }  # fmt: skip
    if "default_factory" in constraints:
        return Field(description=help_text, json_schema_extra=extra, **constraints)
    return Field(default, description=help_text, json_schema_extra=extra, **constraints)


def _split_at_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


#: A list that an environment variable holds joined by commas.
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_at_commas)]


class ServerSettings(BaseSettings):
    """The settings that all services have.

    Attributes:
        most_used: The settings that the command's help lists first.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    most_used: ClassVar[tuple[str, ...]] = ()

    @property
    def readers(self) -> frozenset[str] | None:
        """The judges or sandboxes to load, as `read_by` names them; None if they read everything."""
        return frozenset()

    # One line per setting.
    # fmt: off
    host: str = setting("127.0.0.1", "Address to listen on. Any address other than loopback requires --api-key-file.", group="Network")
    port: int = setting(18080, "TCP port to listen on. 0 picks a free port and prints it.", ge=0, le=65535, metavar="PORT", group="Network")
    api_key_file: FilePath | None = setting(None, "File of accepted API keys, one per line. It is read again when it changes.", group="Network")
    allow_unauthenticated: bool = setting(False, "Listen beyond loopback without API keys: anyone who can reach the port may use the service.", group="Network")
    open_metrics: bool = setting(False, "Serve GET /metrics without an API key.", group="Network")
    allowed_host: NameList = setting([], "Name by which callers may address the service (`Host`), besides loopback names; may be repeated, and `*` is any. Beyond loopback, IP addresses are accepted as well. Without it, and with --api-key-file, any name is accepted.", group="Network", metavar="NAME")
    max_in_flight: PositiveInt = setting(64, "Items at the backend at the same time. Raise it to fill a batching backend, lower it to save memory.", group="Limits")
    max_queue_depth: PositiveInt = setting(512, "Items that wait for the backend. Beyond it, requests get 429 instead of waiting long.", group="Limits")
    max_waiting: PositiveInt = setting(10_000, "Requests that wait in line, their bodies unread, on the routes whose clients cannot repeat them.", group="Limits")
    max_body_mb: PositiveInt = setting(64, "MiB of one request body. Raise it for large batches of frames.", group="Limits")
    max_total_body_mb: PositiveInt = setting(1024, "MiB of the bodies of all admitted requests together.", group="Limits")
    deadline_s: float = setting(120.0, "Seconds for a request, including the time it waits. A caller may ask for less (X-Request-Timeout).", gt=0, group="Limits")
    shutdown_timeout_s: float = setting(30.0, "Seconds that admitted requests may take after SIGTERM.", ge=0, group="Limits")
    cache_mb: int = setting(256, "MiB of scores cached in memory; 0 for none.", ge=0, group="Cache")
    cache_file: Path | None = setting(None, "SQLite file for cached scores that outlive the process.", group="Cache")
    cache_file_mb: PositiveInt = setting(1024, "MiB of --cache-file in use. The oldest scores are evicted first.", group="Cache")
    cache_url: str | None = setting(None, "Redis server with cached scores that replicas share, e.g. redis://127.0.0.1:6379/0. Replaces --cache-file.", group="Cache")
    cache_signing_key_file: FilePath | None = setting(None, "File with a secret, not an API key. Scores in --cache-url and --cache-file are signed with it, and others are computed again.", group="Cache")
    cache_audit_rate: float = setting(0.001, "Share of cache hits that are computed again and compared, counted by rewardfleet_cache_audits_total. Scores that differ are evicted.", ge=0, le=1, group="Cache")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe log lines to write. `warning` drops the line that each request writes.", group="Logging")
    log_sample_rate: float = setting(1.0, "Share of the lines about requests without a failure that are written. Those about failures always are.", ge=0, le=1, group="Logging")
    # fmt: on

    @model_validator(mode="after")
    def _is_not_open_by_mistake(self) -> Self:
        if not (is_loopback(self.host) or self.api_key_file or self.allow_unauthenticated):
            raise ValueError(
                f"--host {self.host} makes this service reachable from other machines: give "
                "--api-key-file, or --allow-unauthenticated if anyone who can reach it may use it"
            )
        return self

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        """Refuse a setting that only judges or sandboxes read that are not loaded."""
        readers = self.readers
        unread = {
            name: read_by
            for name in sorted(self.model_fields_set)
            if (read_by := _read_by(type(self).model_fields[name]))
            and not (readers is None or readers & read_by)
        }
        if unread:
            raise ValueError("; ".join(self._unread_reason(*each) for each in unread.items()))
        return self

    def _unread_reason(self, name: str, read_by: frozenset[str]) -> str:
        value = getattr(self, name)
        shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if name.endswith("_url"):
            shown = redact(shown)
        shown = shown or "''"
        loaded = sorted(reader for reader in self.readers or () if " " not in reader)
        return (
            f"--{name.replace('_', '-')} {shown} (or {ENV_PREFIX}{name.upper()}) is not read by "
            f"{' and '.join(loaded)}, but by: {', '.join(sorted(read_by, key=str.casefold))}"
        )


def _read_by(info: FieldInfo) -> frozenset[str]:
    extra = info.json_schema_extra
    names: Any = extra.get("read_by", ()) if isinstance(extra, dict) else ()
    return frozenset(names)


def traces_configured() -> bool:
    """Return whether OpenTelemetry's own variables name a receiver of traces."""
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true" or given("OTEL_TRACES_EXPORTER") == "none":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(given(name) for name in names)


def is_loopback(host: str) -> bool:
    """Return whether a host is an address of this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another host name may resolve to anything
        return False


def redact(url: str) -> str:
    """Return a URL without its user, password and query, for messages and logs."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", url))


def unknown_variables(known: Iterable[str]) -> list[str]:
    """Return the environment variables `REWARDFLEET_*` that nothing reads.

    Args:
        known: The names of all settings.
    """
    accepted = {f"{ENV_PREFIX}{name.upper()}" for name in {*known, *OTHER_VARIABLES}}
    return sorted(
        name for name in os.environ if name.startswith(ENV_PREFIX) and name not in accepted
    )
