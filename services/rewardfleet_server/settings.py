"""The settings of all services. Only `settings.py` files read the environment.

Each field is given by `--set NAME=VALUE` or by an environment variable, here
`REWARDFLEET_MAX_QUEUE_DEPTH=100`; those that most users give are flags as well (`--port 8080`).
`--set` takes precedence, then the flag.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, FilePath, PositiveInt, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rewardfleet.services import SERVICES
from rewardfleet.wire.urls import is_loopback, redact

#: Starts the environment variable of each setting.
ENV_PREFIX = "REWARDFLEET_"

#: Environment variables that are read, but are not settings of a service.
OTHER_VARIABLES = {
    "API_KEY",
    "URL",
    "ENGINE_PROCESS",
    "ATTEMPT",
    *(f"{n.upper()}_URL" for n in SERVICES),
}

#: How many characters of a value an error shows.
_MAX_SHOWN = 200


def setting(
    default: Any = None,
    help_text: str = "",
    *,
    shown: str | None = None,
    metavar: str | None = None,
    **constraints: Any,
) -> Any:
    """Declare a setting, with further arguments of `pydantic.Field`.

    Args:
        help_text: What it is, its unit, and why one would change it.
        shown: The default as documentation shows it, if that is not its value.
        metavar: The name of its value in help, if neither its type nor its name gives one.
    """
    extra: dict[str, Any] = {"shown": shown, "metavar": metavar}
    if "default_factory" not in constraints:
        constraints["default"] = default
    return Field(description=help_text, json_schema_extra=extra, **constraints)


_SPLIT = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
#: A list that an environment variable holds joined by commas.
NameList = Annotated[list[str], NoDecode, _SPLIT]


def _parse_store(given: object) -> str | None:
    store = str(given) if given else None
    # Replicas with a file of that name each would share nothing, and nobody would notice.
    if store is not None and re.fullmatch(r"[\w.-]+:\d+(/\d*)?", store):
        raise ValueError(f"give redis://{store} for a Redis server, or ./{store} for a file")
    return store


#: A SQLite file, or the URL of a Redis server; an empty text is none.
Store = Annotated[str | None, BeforeValidator(_parse_store)]


class ServerSettings(BaseSettings):
    """The settings that all services have."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    #: The settings that are flags of the command.
    flags: ClassVar[tuple[str, ...]] = ("port", "host", "api_key_file", "score_log")
    #: Further spellings of flags, by the setting's name.
    other_flags: ClassVar[Mapping[str, str]] = {}

    # One line per setting.
    # fmt: off
    host: str = setting("127.0.0.1", "Address to bind; one beyond loopback needs --api-key-file.")
    port: int = setting(SERVICES["video"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT")
    api_key_file: FilePath | None = setting(None, "File of API keys, one per line; read again when it changes.")
    allow_unauthenticated: bool = setting(False, "Listen beyond loopback without API keys.")
    open_metrics: bool = setting(False, "Serve GET /metrics without an API key.")
    allowed_host: NameList = setting([], "Accepted `Host`s, besides loopback names and, beyond loopback, IP addresses. `*`: any, the default with --api-key-file.", metavar="NAME")
    max_in_flight: PositiveInt = setting(64, "Most items at the backend at the same time.")
    max_queue_depth: PositiveInt = setting(512, "Most items that wait for the backend; further ones get 429.")
    max_body_mb: PositiveInt = setting(64, "Largest request body or video file in MiB.")
    deadline_s: float = setting(120.0, "Most seconds of a request, including its wait.", gt=0)
    shutdown_timeout_s: float = setting(30.0, "Most seconds for admitted requests after SIGTERM.", ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Log level: debug, info, warning (no requests) or error.", metavar="LEVEL")
    log_sample_rate: float = setting(1.0, "Share of the successful requests that are logged.", ge=0, le=1)
    score_log: Path | None = setting(None, "Folder that keeps requests, scores and small pictures.", metavar="FOLDER")
    score_log_sample: float = setting(0.05, "Share of cached scores, episodes and answers that --score-log keeps.", ge=0, le=1, metavar="SHARE")
    score_log_mb: PositiveInt = setting(4096, "Largest --score-log in MiB; its oldest records go.")
    score_log_days: float = setting(30.0, "Days for which --score-log keeps records.", gt=0, metavar="DAYS")
    score_log_key_file: FilePath | None = setting(None, "File of keys, not API keys, for `rewardfleet look URL`.")
    # fmt: on

    @model_validator(mode="after")
    def _has_a_log_to_read(self) -> Self:
        if self.score_log_key_file is not None and self.score_log is None:
            raise ValueError("score_log_key_file: give --score-log FOLDER as well")
        return self

    @model_validator(mode="after")
    def _is_not_open_by_mistake(self) -> Self:
        if not (is_loopback(self.host) or self.api_key_file or self.allow_unauthenticated):
            raise ValueError(
                f"--host {self.host} makes this service reachable from other machines: give "
                "--api-key-file, or --set allow_unauthenticated=true if anyone who can reach it may "
                "use it"
            )
        return self


class CacheSettings(ServerSettings):
    """The settings of a service whose scores are cached."""

    flags = (*ServerSettings.flags, "cache")

    # One line per setting.
    # fmt: off
    cache_mb: int = setting(256, "Most MiB of scores cached in memory; 0: none.", ge=0)
    cache: Store = setting(None, "Store of scores: a SQLite file, or redis://HOST:6379/0.", metavar="FILE|URL")
    cache_signing_key_file: FilePath | None = setting(None, "File of a secret, not an API key, that signs what --cache stores.")
    # fmt: on


def read_keys(path: Path, flag: str) -> list[str]:
    """Return the keys in a file, one per line; empty lines and those that start with `#` are none.

    Raises ValueError if there are none, which names the setting, and OSError.
    """
    source = f"{flag} {path}"
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not a text file") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ValueError(f"{source}: a key is not plain ASCII")
    if not keys:
        raise ValueError(f"{source}: no key in it; write one key per line")
    return keys


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the known word that is nearest, as the end of a message; "" if none is near."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def is_url(store: str | None) -> bool:
    """Return whether a `Store` is the URL of a Redis server."""
    return store is not None and "://" in store


def flag_of(name: str) -> str:
    """Return the flag of a setting, e.g. `--api-key-file`."""
    return f"--{name.replace('_', '-')}"


def shown_value(value: object) -> str:
    """Return a value as one short line, without the password of a URL."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    line = " ".join(text.split())
    line = redact(line) if "://" in line else line
    return f"{line[:_MAX_SHOWN]}…" if len(line) > _MAX_SHOWN else line or "''"


def traces_configured() -> bool:
    """Return whether OpenTelemetry's own variables name a receiver of traces."""
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true" or given("OTEL_TRACES_EXPORTER") == "none":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(map(given, names))


def unknown_variable_warnings(settings_types: Iterable[type[ServerSettings]]) -> list[str]:
    """Return a warning for each environment variable `REWARDFLEET_*` that no service reads."""
    known = sorted({name.upper() for each in settings_types for name in each.model_fields})
    given = {each.removeprefix(ENV_PREFIX) for each in os.environ if each.startswith(ENV_PREFIX)}
    unknown = sorted(given - OTHER_VARIABLES - set(known))
    text = f"the environment variable {ENV_PREFIX}%s is not a setting%s"
    return [text % (name, did_you_mean(name, known, ENV_PREFIX)) for name in unknown]
