"""The settings of the code service."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, FilePath, HttpUrl, PositiveFloat, PositiveInt

from rewardfleet_server.settings import NameList, ServerSettings, setting


def _default_cache_file() -> Path:
    """Return a file in the user's cache folder, so that verdicts outlive the process."""
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "rewardfleet" / "code.sqlite"


class CodeSettings(ServerSettings):
    """`rewardfleet serve code`."""

    most_used = (
        "port", "isolation", "workers", "python", "preload",
        "max_submission_s", "cache_file", "cache_url", "api_key_file", "host",
    )  # fmt: skip

    # One line per setting.
    # fmt: off
    port: int = setting(18081, "TCP port to listen on. 0 picks a free port and prints it.", ge=0, le=65535, metavar="PORT", group="Network")
    cache_file: Annotated[Path | None, BeforeValidator(lambda given: given or None)] = setting(help_text="SQLite file for cached verdicts that outlive the process; empty for none.", default_factory=_default_cache_file, shown="~/.cache/rewardfleet/code.sqlite", group="Cache")
    sandbox: Literal["jail", "fusion"] = setting("jail", "Where programs run: in jails on this machine, or on a SandboxFusion server.", group="Sandbox")
    workers: PositiveInt = setting(os.cpu_count() or 1, "Jails. Each runs one program at a time.", shown="one per core", group="Sandbox")
    isolation: Literal["auto", "bubblewrap", "landlock", "none-unsafe"] = setting("auto", "Isolation of programs: the best level that works here, or this one. none-unsafe: programs can read this user's files.", group="Sandbox")
    python: FilePath | None = setting(None, "Interpreter that runs the programs, with the packages of its environment.", shown="this service's interpreter, without its environment's packages", group="Sandbox")
    preload: NameList = setting([], "Module to import before the first program, e.g. numpy. Repeat it for several. Any other module is imported by each run.", metavar="MODULE", group="Sandbox")
    max_cpu_s: PositiveFloat = setting(60.0, "Largest limits.cpu_s of a request.", group="Ceilings")
    max_wall_s: PositiveFloat = setting(60.0, "Largest limits.wall_s of a request.", group="Ceilings")
    max_memory_mb: PositiveInt = setting(4096, "Largest limits.memory_mb of a request. The machine should have this much for each worker.", group="Ceilings")
    max_output_kb: PositiveInt = setting(65_536, "Largest limits.output_kb of a request.", group="Ceilings")
    max_submission_s: PositiveFloat = setting(60.0, "Seconds of CPU for all tests of a submission, and 1.5 times as many of wall time. Further tests are skipped.", group="Ceilings")
    fusion_url: HttpUrl | None = setting(None, "Base URL of the SandboxFusion server of --sandbox fusion, e.g. http://127.0.0.1:8080.", group="SandboxFusion")
    fusion_concurrency: PositiveInt = setting(32, "Runs on the SandboxFusion server at the same time. The server has no limit of its own.", group="SandboxFusion")
    # fmt: on
