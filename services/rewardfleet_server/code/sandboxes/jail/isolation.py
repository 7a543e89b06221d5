"""The isolation levels: how the supervisor of a jail is started at each, and as which user.

`bubblewrap`: user, pid, network, ipc, uts and mount namespaces, an empty file system with a
read-only Python, and Landlock in addition if the kernel has it.
`landlock`: for machines without namespaces (a container's default seccomp profile, a hardened
kernel). Landlock permits reading Python only, and writing nothing.
`none-unsafe`: neither. Programs can read all files that the user of the service can read.

The seccomp filters and the limits apply at every level. If the service runs as root, the jails run
as nobody: the limit on processes does not apply to root, and nobody owns few files.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: How programs are isolated, from the best level to none.
IsolationLevel = Literal["bubblewrap", "landlock", "none-unsafe"]

#: The levels that are tried by default. `none-unsafe` must be requested explicitly.
FALLBACK_ORDER: tuple[IsolationLevel, ...] = ("bubblewrap", "landlock")

_NOBODY = 65534
#: Bytes of each folder that a program may write to, in memory.
SCRATCH_BYTES = 64 * 2**20
#: Maximum number of processes and threads of a jail.
_MAX_TASKS = 128
_VERSION_TIMEOUT_S = 20.0
#: Folders of a jail that programs may write to.
_WRITABLE = ("/tmp", "/dev/shm")  # noqa: S108 - of the jail
#: The complete environment, also of programs. With a fixed hash seed, sets have the same order in
#: every run. Threads share one arena of malloc: each arena takes 64 MiB of the memory limit.
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 - of the jail
    "USER": "user",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "MPLCONFIGDIR": "/dev/shm",  # noqa: S108 - matplotlib needs a folder that seems writable
    "DASK_SCHEDULER": "threads",
    "JOBLIB_MULTIPROCESSING": "0",  # otherwise these two start processes
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "LD_BIND_NOW": "1",  # otherwise each run looks up the same symbols of libraries
}
_FLAGS = ("-s", "-P", "-B", "-X", "utf8")
#: Prints whether the interpreter is new enough, and its folders.
_VERSION_PROGRAM = """
import json, sys
print(json.dumps([sys.version_info >= (3, 11), sys.prefix, sys.base_prefix]))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter that the user of the jails can run."""

    path: str
    prefixes: tuple[str, ...]  #: the folders that it needs


@dataclass(frozen=True)
class IsolationSpec:
    """How to start a supervisor at an isolation level."""

    level: IsolationLevel
    #: The command, without its last arguments, the descriptors of the channels.
    command: tuple[str, ...]
    readable: tuple[str, ...]  #: paths that Landlock permits to read
    writable: tuple[str, ...]  #: paths that Landlock permits to write
    processes: int  #: limit on the processes and threads of the user of the jails
    landlock: bool  #: whether to use Landlock if the kernel has it
    python: str
    #: Paths of the interpreter in writable folders, which are not removed after a run.
    kept: tuple[str, ...] = ()


def jail_user() -> int | None:
    """Return the user id that jails run as; None for that of the service."""
    return _NOBODY if os.geteuid() == 0 else None


@functools.cache  # it starts a process
def find_python(requested: Path | None) -> Python:
    """Return an interpreter for the jails, of Python 3.11 or newer.

    Args:
        requested: The interpreter to use. None: that of the service, or one of the system.

    Raises:
        ValueError: There is none that the user of the jails can run.
    """
    own = os.path.realpath(sys.executable)
    system = ("/usr/local/bin/python3", "/usr/bin/python3")
    candidates = [str(requested.absolute())] if requested else [own, *system]
    reasons = []
    for path in candidates:
        try:
            new_enough, *prefixes = json.loads(_output_of(path, *_FLAGS, "-c", _VERSION_PROGRAM))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            stderr = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
            reason = stderr.rpartition("\n")[2][:300] or getattr(error, "strerror", None) or error
            reasons.append(f"{path}: {reason}")
        else:
            environment = Path(path).parent.parent
            if not new_enough:
                reasons.append(f"{path}: older than Python 3.11")
            elif (environment / "pyvenv.cfg").exists() and str(environment) not in prefixes:
                reasons.append(f"{path}: pyvenv.cfg of its environment cannot be read")
            else:
                return Python(path, tuple(dict.fromkeys(prefixes)))
    raise ValueError(
        f"programs cannot be run: {'nobody (uid 65534)' if jail_user() else 'this user'}, who runs "
        f"them, can use no Python 3.11 or newer ({'; '.join(reasons)}); give one with --python"
    )


def _output_of(*command: str) -> bytes:
    options = {"timeout": _VERSION_TIMEOUT_S, "cwd": "/", "env": ENVIRONMENT, **as_jail_user()}
    output = subprocess.check_output(command, stderr=subprocess.PIPE, **options)  # noqa: S603
    return bytes(output)


def isolation_spec(level: IsolationLevel, python: Python, jails: int) -> IsolationSpec:
    """Return how to start a supervisor at a level, if there may be so many jails.

    Raises:
        ValueError: bubblewrap is not installed.
    """
    command = (python.path, *_FLAGS, "-")
    readable = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", *python.prefixes)
    if level != "bubblewrap":
        # Jails of the same user share the limit. Each has a supervisor, a zygote, a program and its
        # tests.
        tasks = _tasks_of_user() + _MAX_TASKS + 4 * jails
        return IsolationSpec(level, command, readable, (), tasks, level == "landlock", python.path)
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ValueError("bubblewrap is not installed (`apt-get install bubblewrap`)")
    wrapper = (bwrap, *_bubblewrap_flags(python.prefixes))
    kept = tuple(path for path in python.prefixes if path.startswith(("/tmp/", "/dev/shm/")))  # noqa: S108 - of the jail
    return IsolationSpec(
        level, (*wrapper, *command), readable, _WRITABLE, _MAX_TASKS, True, python.path, kept
    )


def runs_at_all(spec: IsolationSpec) -> bool:
    """Return whether a level works without the interpreter, so that this is what fails."""
    if spec.level != "bubblewrap":
        return True  # nothing precedes the interpreter
    # Bubblewrap itself is a program that is in the jail, because it is in /usr.
    flags = spec.command[: spec.command.index(spec.python)]
    try:
        _output_of(*flags, flags[0], "--version")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def spawn(command: Sequence[str], channels: Sequence[int], errors: int) -> subprocess.Popen[bytes]:
    """Start a supervisor, which reads its source code from its standard input.

    Its channels are descriptors of its own and of the zygote's end, and `errors` of a file.
    """
    return subprocess.Popen(  # noqa: S603 - from `isolation_spec`
        [*command, *map(str, channels)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=ENVIRONMENT,
        pass_fds=channels,
        cwd="/",
        start_new_session=True,
        **as_jail_user(),
    )


def as_jail_user() -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` by which a process runs as that user."""
    user = jail_user()
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _bubblewrap_flags(prefixes: Sequence[str]) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session")
    yield from ("--as-pid-1", "--hostname", "jail", "--ro-bind", "/usr", "/usr")
    for folder in map(Path, ("/lib", "/lib32", "/lib64", "/bin")):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        yield from ("--ro-bind-try", path, path)
    yield from ("--proc", "/proc", "--dev", "/dev")
    for path in _WRITABLE:
        yield from ("--size", str(SCRATCH_BYTES), "--tmpfs", path)
    # After the folders that would hide an interpreter in the host's /tmp.
    for path in prefixes:
        if not Path(path).is_relative_to("/usr"):
            yield from ("--ro-bind", path, path)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp")  # noqa: S108 - of the jail


def _tasks_of_user() -> int:
    """Return how many threads the user of the jails has now: the limit includes them."""
    user, count = jail_user() or os.geteuid(), 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if process.stat().st_uid == user:
                count += len([*(process / "task").iterdir()])
    return count
