"""The only place that reads the environment.

Each field is a flag (`--max-waiting 100`) and an environment variable
(`REWARDFLEET_MAX_WAITING=100`); a flag wins.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, FilePath, PositiveInt, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split_at_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


#: Repeated flags come joined by commas.
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_at_commas)]


class ServerSettings(BaseSettings):
    """What every service can be told."""

    model_config = SettingsConfigDict(
        env_prefix="REWARDFLEET_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="forbid",
        frozen=True,
    )

    # One line a setting: its unit, and why one would change it.
    # fmt: off
    host: str = Field("127.0.0.1", description="Address to listen on. Any other than this machine's own asks for keys.")
    port: int = Field(18080, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one and prints it.")
    api_key_file: FilePath | None = Field(None, description="File of bearer keys, one a line, read again when it changes.")
    allow_unauthenticated: bool = Field(False, description="Listen beyond this machine without keys: whoever reaches the port may use it.")
    open_metrics: bool = Field(False, description="Answer GET /metrics without a key, for a Prometheus that has none.")
    max_in_flight: PositiveInt = Field(64, description="Items at the backend at once. More fills a batching backend; fewer bounds memory.")
    max_waiting: PositiveInt = Field(512, description="Items that wait for the backend. Fewer refuses callers (429) instead of letting them wait long.")
    max_body_mb: PositiveInt = Field(64, description="MiB of one request's body. Raise for large batches of frames.")
    max_bodies_mb: PositiveInt = Field(1024, description="MiB of all bodies in flight together: the bound on memory for inputs.")
    deadline_s: float = Field(120.0, gt=0, description="Seconds for a request, waiting included. A caller may ask for less (X-Request-Timeout).")
    grace_s: float = Field(30.0, ge=0, description="Seconds that work in flight may take after SIGTERM.")
    cache_mb: int = Field(256, ge=0, description="MiB of answers kept in memory; 0 keeps none there.")
    cache_file: Path | None = Field(None, description="SQLite file for answers that shall outlive the process.")
    cache_file_mb: PositiveInt = Field(1024, description="MiB of answers kept in --cache-file; the oldest go first.")
    cache_url: str | None = Field(None, description="Redis server that replicas share their answers by, e.g. redis://127.0.0.1:6379/0, in place of --cache-file.")
    cache_audit: float = Field(0.0, ge=0, le=1, description="Share of known answers that are computed anew all the same; rewardfleet_cache_audits_total counts whether both agree.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe log lines to write; `warning` drops the line that each request writes.")
    # fmt: on

    @model_validator(mode="after")
    def _nobody_gets_in_by_mistake(self) -> Self:
        if not (_is_loopback(self.host) or self.api_key_file or self.allow_unauthenticated):
            raise ValueError(
                f"listening on {self.host} lets others reach this service: give --api-key-file, "
                "or say --allow-unauthenticated if everybody who can reach it may use it"
            )
        return self


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another host name: it may resolve to anything
        return False
