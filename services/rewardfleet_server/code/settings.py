"""What the code service can be told."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FilePath, HttpUrl, PositiveFloat, PositiveInt

from rewardfleet_server.settings import NameList, ServerSettings


def _cache_file() -> Path:
    """The user's own place for what may be lost: verdicts are worth more than one process's life."""
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "rewardfleet" / "code.sqlite"


class CodeSettings(ServerSettings):
    """`rewardfleet serve code`."""

    # One line a setting: its unit, and why one would change it.
    # fmt: off
    port: int = Field(18081, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one and prints it.")
    sandbox: Literal["jail", "fusion"] = Field("jail", description="Where programs run: in jails on this machine, or at a SandboxFusion server.")
    cache_file: Annotated[Path | None, BeforeValidator(lambda given: given or None)] = Field(default_factory=_cache_file, description="SQLite file for verdicts that shall outlive the process; empty for none.")
    workers: PositiveInt = Field(os.cpu_count() or 1, description="Jails, each of which runs one program at a time. Default: one a core.")
    isolation: Literal["auto", "bubblewrap", "landlock", "none-unsafe"] = Field("auto", description="How programs are kept in: the best that works here, or this one or none. none-unsafe: they may read this user's files.")
    python: FilePath | None = Field(None, description="Interpreter that runs the programs, with the packages of its environment. Default: the one that this service runs on, without its environment's packages.")
    preload: NameList = Field([], description="Module to import before the first program, e.g. numpy; repeat for several. Others are imported by each run anew.")
    max_cpu_s: PositiveFloat = Field(60.0, description="Most that a request may ask for by limits.cpu_s.")
    max_wall_s: PositiveFloat = Field(60.0, description="Most that a request may ask for by limits.wall_s.")
    max_memory_mb: PositiveInt = Field(4096, description="Most that a request may ask for by limits.memory_mb. Times --workers, the machine should have it.")
    max_output_kb: PositiveInt = Field(65_536, description="Most that a request may ask for by limits.output_kb.")
    max_submission_s: PositiveFloat = Field(60.0, description="Seconds of CPU that all tests of a submission may take together, and half as much again by the clock. The rest is skipped.")
    fusion_url: HttpUrl | None = Field(None, description="Base URL of the SandboxFusion server of the sandbox `fusion`, e.g. http://127.0.0.1:8080.")
    fusion_concurrency: PositiveInt = Field(32, description="Runs at the SandboxFusion server at once. It has no bound of its own, and answers nobody in time when it has too many.")
    # fmt: on
