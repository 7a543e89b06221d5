"""The files of a score log: segments of JSON lines, which become Parquet files once closed.

`TIME-PID-RANDOM.jsonl` is written by one process, which has a lock on it. Names are in the order in
which segments were begun, even if the clock is set back. A segment without a lock
is closed: the process that notices it first rewrites it as `TIME-PID-RANDOM.parquet`. Where both
files exist, the Parquet file counts: the process that rewrote the other one was killed.

Who replaces or reads files has a lock on `.lock`, so that no file vanishes while it is read.
"""

import contextlib
import fcntl
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rewardfleet.bulk.files import NEW, OWNER_ONLY, new_file

OPEN, CLOSED = ".jsonl", ".parquet"
#: The time in the name of a segment.
_TIME = "%Y%m%dT%H%M%S%f"
#: Tells writers, when it changes, to close their segments; see `ask_to_close`.
_CLOSE = ".close"
#: Seconds after which a file that is not complete never will be.
_ABANDONED_SECONDS = 3600


def prepare_folder(folder: Path) -> None:
    """Create the folder of a log, for its owner only, if it does not exist.

    Raises:
        ValueError: It cannot be written, or others may write to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise ValueError(f"{folder}: no folder for a score log: {error.strerror}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{folder}: other users may write to this folder, so it cannot have a score log: name "
            "a folder in it that does not exist yet, or `chmod go-w` it"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: this process may not write to it")


class Segment:
    """An open segment, of which this process is the only writer.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{_next_time(folder)}-{os.getpid()}-{secrets.token_hex(4)}{OPEN}"
        unlocked = self.path.with_name(f".{self.path.name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(unlocked, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        unlocked.rename(self.path)  # now that nobody can take it for closed
        self.size = 0
        self.opened = time.monotonic()

    def append(self, lines: bytes) -> None:
        """Append lines, all of them or none.

        Raises:
            OSError: The disk does not take them.
        """
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self.size)  # else the next line would follow a part of one
            raise
        self.size += len(lines)

    def close(self) -> None:
        """Close it, and release its lock. If nothing was written, it is no more."""
        if not self.size:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def _next_time(folder: Path) -> str:
    """Return the time, or one just after the newest segment if the clock was set back since."""
    now = datetime.fromtimestamp(time.time(), UTC)
    for path in reversed(segments(folder)):
        with contextlib.suppress(ValueError, OverflowError):  # no time, or the last one
            begun = datetime.strptime(f"{path.name.partition('-')[0]}+0000", f"{_TIME}%z")
            now = max(now, begun + timedelta(microseconds=1))
            break
    return now.strftime(_TIME)


def segments(folder: Path) -> list[Path]:
    """Return the segments of a log, each once, the oldest first."""
    found = {path.stem: path for path in folder.glob(f"[!.]*{OPEN}")}
    found |= {path.stem: path for path in folder.glob(f"[!.]*{CLOSED}")}
    return [found[name] for name in sorted(found)]


def open_segments(folder: Path) -> list[Path]:
    """Return the segments that are not rewritten, the oldest first."""
    return sorted(folder.glob(f"[!.]*{OPEN}"))


@contextlib.contextmanager
def if_closed(path: Path) -> Iterator[bool]:
    """Give the block whether an open segment has no writer any more, and keep others from it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # another process has rewritten it
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path.exists()
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep files of a log from being replaced for the block, if this process may write there."""
    with contextlib.ExitStack() as stack:
        if os.access(folder, os.W_OK):
            stack.enter_context(_lock(folder, fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def replacing(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Let nobody read or replace files of a log for the block.

    Raises:
        BlockingIOError: Somebody does now, and `waits` is False.
    """
    with _lock(folder, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)):
        yield


@contextlib.contextmanager
def _lock(folder: Path, operation: int) -> Iterator[None]:
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


def ask_to_close(folder: Path) -> None:
    """Ask the writers of a log to close their segments, which they do within a second."""
    with new_file(folder / _CLOSE, OWNER_ONLY) as file:
        file.write(secrets.token_hex(8).encode())


def close_request(folder: Path) -> str:
    """Return what changes when writers are to close their segments."""
    try:
        return (folder / _CLOSE).read_text()
    except OSError:
        return ""


def enforce_limits(folder: Path, max_bytes: int, max_age_s: float | None) -> None:
    """Delete the oldest closed segments of a log that is too large, and those that are too old.

    Args:
        max_age_s: None: nothing is deleted by its age, as the clock may be wrong.
    """
    if max_age_s is not None:
        _delete_abandoned(folder)
    total = 0
    for path, size, age in reversed(_ages(folder)):
        total += size
        if total <= max_bytes and (max_age_s is None or age <= max_age_s):
            continue
        if path.suffix == CLOSED:
            path.unlink(missing_ok=True)  # another process may have done it
            continue
        with if_closed(path) as closed:
            if closed:
                path.unlink(missing_ok=True)


def _ages(folder: Path) -> list[tuple[Path, int, float]]:
    """Return segments, their bytes and their ages in seconds, the oldest first.

    A segment is no older than one that was begun before it: what is written while the clock is
    years behind is not too old once it is right. One from the future has no age.
    """
    found, now, least = [], time.time(), math.inf
    for path in segments(folder):
        with contextlib.suppress(FileNotFoundError):  # another process has deleted it
            status = path.stat()
            age = now - status.st_mtime
            least = min(least, age) if age >= 0 else least
            found.append((path, status.st_size, least if age >= 0 else 0.0))
    return found


def _delete_abandoned(folder: Path) -> None:
    for path in folder.glob(f".*{NEW}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
