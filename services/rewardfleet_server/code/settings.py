"""The settings of the code service."""

import os
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BeforeValidator, FilePath, HttpUrl, PositiveFloat, PositiveInt, model_validator
from pydantic_settings import NoDecode

from rewardfleet.services import SERVICES
from rewardfleet_server.settings import CacheSettings, NameList, Store, setting
from rewardfleet_server.system.threads import usable_cores

from .sandboxes.jail.isolation import FALLBACK_ORDER, IsolationLevel
from .sandboxes.jail.memory import MOST_MB, default_limit_mb

#: The largest `limits.output_kb` of a request. No test compares outputs beyond it, and a request
#: may ask for less.
MAX_OUTPUT_KB = 65_536
#: A comma between packages, and not between the parts of a version specifier.
_COMMA = re.compile(r",(?!\s*[<>=!~])")


def _default_cache_file() -> Path:
    """Return a file in the user's cache folder, so that verdicts outlive the process."""
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "rewardfleet" / "code.sqlite"


_FUSION_WORKERS = 32  #: runs on a SandboxFusion server at the same time: it has no limit of its own


def checkers_folder() -> Path:
    """Return the folder of compiled checkers, in the user's cache folder."""
    return _default_cache_file().with_name("checkers")


def environments_folders() -> tuple[Path, ...]:
    """Return the folders in which environments of `--packages` are searched.

    They are built in the first one, in the user's cache folder. Root has no such folder that the
    user of the jails can read, so root builds in the other one, for all users.
    """
    system = Path("/var/cache")
    own = os.environ.get("XDG_CACHE_HOME") or (system if os.geteuid() == 0 else "~/.cache")
    folders = (Path(own).expanduser().absolute(), system)
    return tuple(dict.fromkeys(folder / "rewardfleet" / "jails" for folder in folders))


def _parse_requirements(given: object) -> object:
    if not isinstance(given, str | list | tuple):
        return given
    texts = [given] if isinstance(given, str) else given
    return sorted({_normalize(part) for text in texts for part in _COMMA.split(str(text))})


def _normalize(text: str) -> str:
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url or requirement.extras or requirement.marker:
        raise ValueError(
            f"give names of packages, with or without versions, like numpy,scipy>=1.14 (got {text!r})"
        )
    return f"{canonicalize_name(requirement.name)}{requirement.specifier}"


class CodeSettings(CacheSettings):
    """`rewardfleet serve code`."""

    flags = (
        *CacheSettings.flags,
        *("isolation", "workers", "packages", "preload", "python", "fusion_url"),
    )
    #: The settings that a SandboxFusion server has no use for.
    of_jails: ClassVar = ("isolation", "python", "packages", "preload", "testlib_path")

    # One line per setting.
    # fmt: off
    port: int = setting(SERVICES["code"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT")
    cache: Store = setting(help_text="Store of verdicts: a SQLite file, or redis://HOST:6379/0 for replicas; empty for none.", default_factory=lambda: str(_default_cache_file()), shown="~/.cache/rewardfleet/code.sqlite", metavar="FILE|URL")
    fusion_url: HttpUrl | None = setting(None, "Run programs on SandboxFusion, e.g. http://127.0.0.1:8080, not in jails.")
    workers: PositiveInt = setting(help_text="Most programs that use a core at the same time; up to four times as many while some sleep.", default_factory=lambda given: _FUSION_WORKERS if given.get("fusion_url") else usable_cores(), shown="one per core; 32 on a SandboxFusion server")
    isolation: Literal["auto", "bubblewrap", "landlock", "none-unsafe"] = setting("auto", "Isolation: auto (the best one that works here), bubblewrap, landlock, or none-unsafe: programs can read this user's files.", metavar="LEVEL")
    python: FilePath | None = setting(None, "Interpreter that runs programs, with its packages unless --packages is given.", shown="that of this service, without its packages")
    packages: Annotated[list[str], NoDecode, BeforeValidator(_parse_requirements)] = setting([], "Packages that programs can import, e.g. numpy,scipy>=1.14. The first start installs them, or `rewardfleet packages build` does it beforehand.", shown="numpy,pytest,sortedcontainers if that command has installed them", metavar="PACKAGES")
    preload: NameList = setting([], "Module to import once for all programs, e.g. numpy; repeatable.", metavar="MODULE")
    testlib_path: FilePath | None = setting(None, "The original testlib.h, for checkers in C++ that include it.", shown="none")
    max_cpu_s: PositiveFloat = setting(60.0, "Largest limits.cpu_s of a request.")
    max_wall_s: PositiveFloat = setting(60.0, "Largest limits.wall_s of a request.")
    max_memory_mb: PositiveInt = setting(help_text="Largest limits.memory_mb of a request; the process of its tests may use twice as much. If it is given, there must be this much for each worker.", default_factory=lambda given: MOST_MB if given.get("fusion_url") else default_limit_mb(), shown="4096, or what one program and its tests can have")
    max_submission_s: PositiveFloat = setting(60.0, "Most CPU time for all tests of a submission, and 1.5 times as much wall time; at most half of deadline_s. The rest is skipped.")
    # fmt: on

    @property
    def sandbox(self) -> Literal["jail", "fusion"]:
        return "fusion" if self.fusion_url else "jail"

    @property
    def isolation_levels(self) -> tuple[IsolationLevel, ...]:
        """The levels to try, the requested one first; `auto` requests the best one."""
        return FALLBACK_ORDER if self.isolation == "auto" else (self.isolation,)

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        given = [name for name in self.of_jails if name in self.model_fields_set]
        if given and self.sandbox == "fusion":
            raise ValueError(
                f"--fusion-url runs programs elsewhere: remove {', '.join(given)}, settings of jails"
            )
        return self
