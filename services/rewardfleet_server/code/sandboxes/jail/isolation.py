"""The ladder of isolation: how a warden is started at each level, and who it runs as.

`bubblewrap`: user, pid, network, ipc, uts and mount namespaces, an empty file system with a
read-only Python, and Landlock on top where the kernel has it.
`landlock`: where namespaces are refused (a container's default seccomp, a hardened kernel).
Landlock leaves nothing to read but Python, and nothing to write.
`none-unsafe`: neither; files that this user may read, programs may read.

At every level the warden's seccomp filter and limits hold. A service that runs as root becomes
nobody first: the limit on processes does not hold for root, and nobody's files are few.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Level = Literal["bubblewrap", "landlock", "none-unsafe"]

#: From the best down; the last is never tried unless it is asked for by name.
FALLBACK_ORDER: tuple[Level, ...] = ("bubblewrap", "landlock")

_NOBODY = 65534
#: MiB of each place that a program may write to.
_SCRATCH_MB = 64
#: Processes and threads of a jail.
_PROCESSES = 128
_ASK_SECONDS = 20.0
#: No environment but this: sets are in the same order in every run.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_FLAGS = ("-s", "-P", "-B", "-X", "utf8")
_ASK = """
import json, sys
print(json.dumps([sys.version_info >= (3, 11), sys.prefix, sys.base_prefix]))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter that the jails' user can run.

    Attributes:
        prefixes: The folders that it needs.
    """

    path: str
    prefixes: tuple[str, ...]


@dataclass(frozen=True)
class IsolationSpec:
    """How to start a warden at a level.

    Attributes:
        command: Without the number of its channel.
        readable, writable: The paths that Landlock leaves open.
        processes: The limit on processes and threads of its user.
    """

    level: Level
    command: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    processes: int
    landlock: bool


def jail_user() -> int | None:
    """The user that jails run as, where it is not the service's own."""
    return _NOBODY if os.geteuid() == 0 else None


def find_python(asked: Path | None) -> Python:
    """Find an interpreter for the jails.

    Raises:
        ValueError: There is none that their user can run.
    """
    own = os.path.realpath(sys.executable)
    candidates = [str(asked)] if asked else [own, "/usr/local/bin/python3", "/usr/bin/python3"]
    for path in candidates:
        try:
            asking = subprocess.run(  # noqa: S603 - ours, or the one that the operator named
                [path, *_FLAGS, "-c", _ASK],
                env=ENVIRONMENT,
                capture_output=True,
                check=True,
                timeout=_ASK_SECONDS,
                cwd="/",
                **_as_jail_user(),
            )
            new_enough, *prefixes = json.loads(asking.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
        if new_enough:
            return Python(path, tuple(dict.fromkeys(prefixes)))
    raise ValueError(
        f"programs cannot be run: no Python 3.11 or newer among {', '.join(candidates)} that "
        f"{'nobody (uid 65534)' if jail_user() else 'this user'} can start; name one by --python"
    )


def cell(level: Level, python: Python) -> IsolationSpec:
    """Return how to start a warden.

    Raises:
        ValueError: bubblewrap is not installed.
    """
    command = (python.path, *_FLAGS, "-")
    readable = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", *python.prefixes)
    if level != "bubblewrap":
        return IsolationSpec(
            level, command, readable, (), _tasks_of_user() + _PROCESSES, level == "landlock"
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ValueError("bubblewrap is not installed (`apt-get install bubblewrap`)")
    around = (bwrap, *_namespaces(python.prefixes))
    writable = ("/tmp", "/dev/shm")  # noqa: S108 - of the jail
    return IsolationSpec(level, (*around, *command), readable, writable, _PROCESSES, True)


def spawn(command: Sequence[str], channel: int, errors: int) -> subprocess.Popen[bytes]:
    """Start a warden, which reads its source from its standard input.

    Args:
        channel: Descriptor of its end of the channel.
        errors: Descriptor of a file for what it says when it cannot start.
    """
    process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - from `cell`
        [*command, str(channel)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=ENVIRONMENT,
        pass_fds=[channel],
        cwd="/",
        start_new_session=True,
        **_as_jail_user(),
    )
    return process


def _as_jail_user() -> dict[str, Any]:
    user = jail_user()
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _namespaces(prefixes: Sequence[str]) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session")
    yield from ("--as-pid-1", "--hostname", "jail", "--ro-bind", "/usr", "/usr")
    for place in map(Path, ("/lib", "/lib32", "/lib64", "/bin")):
        if place.is_symlink():
            yield from ("--symlink", str(place.readlink()), str(place))
        elif place.is_dir():
            yield from ("--ro-bind", str(place), str(place))
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        yield from ("--ro-bind-try", path, path)
    for path in prefixes:
        if not Path(path).is_relative_to("/usr"):
            yield from ("--ro-bind", path, path)
    yield from ("--proc", "/proc", "--dev", "/dev")
    for path in ("/dev/shm", "/tmp"):  # noqa: S108 - of the jail
        yield from ("--size", str(_SCRATCH_MB * 2**20), "--tmpfs", path)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp")  # noqa: S108 - of the jail


def _tasks_of_user() -> int:
    """Count the threads that the jails' user has now: the limit counts them all together."""
    user, count = jail_user() or os.geteuid(), 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if place.stat().st_uid == user:
                    count += sum(1 for _ in (place / "task").iterdir())
            except OSError:  # it has ended
                continue
    return count
