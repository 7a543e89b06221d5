"""The files of a score log: segments of JSON lines.

A process writes to `TIME-PID-RANDOM.jsonl`, to which nobody else writes, and begins another one
from time to time. Whoever replaces or deletes a segment locks it, and its process then begins
another one as well. What replaces a segment has a name of its own, so that a name stands for
content that only grows.

Earlier versions rewrote closed segments as Parquet files. Where both files exist, the Parquet file
counts: the process that rewrote the other one was killed.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rewardfleet.bulk.arrow import pyarrow
from rewardfleet.bulk.files import NEW, OWNER_ONLY, new_file
from rewardfleet.wire.log_segments import NAME

LINES, TABLE = ".jsonl", ".parquet"
#: Seconds after which another segment begins.
_MAX_SECONDS = 3600.0
#: Seconds between two tries to lock a segment, and for all of them before records are deleted.
_PAUSE_SECONDS, _WAIT_SECONDS = 0.05, 20.0


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
    """A segment to which this process alone writes.

    Args:
        max_bytes: After which it is full.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._path = folder / _new_name(f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}", LINES)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        self._size, self._max_bytes = 0, max_bytes
        self._until = time.monotonic() + _MAX_SECONDS

    def append(self, lines: bytes) -> bool:
        """Append lines, all of them or none.

        Returns:
            False if another segment is to begin: this one is full, an hour old, locked or replaced.

        Raises:
            OSError: The disk does not take them.
        """
        is_over = self._size >= self._max_bytes or time.monotonic() > self._until
        if is_over or not _lock(self._fd, self._path):
            return False
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._size)  # else the next line would follow a part of one
            raise
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._size += len(lines)
        return True

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


def _new_name(origin: str, suffix: str) -> str:
    """Return a name that no segment has had, after the time and the process of its records."""
    return f"{origin}-{secrets.token_hex(4)}{suffix}"


def segments(folder: Path) -> list[Path]:
    """Return the segments of a log, each once, the oldest first."""
    found = sorted(path for path in folder.glob("*") if NAME.fullmatch(path.name))
    by_stem = {path.stem: path for path in found}  # the Parquet file comes last
    return [*by_stem.values()]


@contextlib.contextmanager
def locked(path: Path, until: float = 0.0) -> Iterator[None]:
    """Keep others from writing and replacing a segment for the block.

    Args:
        path: The segment; or the folder of a log, for whoever replaces several.
        until: The monotonic time at which waiting for them ends.

    Raises:
        FileNotFoundError: Another process has deleted it.
        BlockingIOError: Another process has locked it.
    """
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _lock(fd, path):
                yield
                return
        finally:
            os.close(fd)
        if time.monotonic() >= until:
            raise BlockingIOError
        time.sleep(_PAUSE_SECONDS)


def _lock(fd: int, path: Path) -> bool:
    """Lock an open file; return False if another process has locked, replaced or deleted it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[IO[bytes]]:
    """Give the block a file that replaces a locked segment, under a name of its own."""
    with new_file(path, OWNER_ONLY) as file:
        yield file
    path.rename(path.with_name(_new_name(path.stem.rpartition("-")[0], path.suffix)))


def enforce_limits(folder: Path, max_bytes: int, max_age_s: float) -> None:
    """Delete the oldest segments of a log that is too large, and those that are too old."""
    total = 0
    for path in reversed(segments(folder)):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # another process is at it
            status = path.stat()
            total += status.st_size
            if total > max_bytes or time.time() - status.st_mtime > max_age_s:
                with locked(path):
                    path.unlink()


def delete_run(folder: Path, run: str) -> int:
    """Delete the records of a run that are in files; return how many there were.

    Raises:
        ValueError: Another process does not release the folder or a segment.
    """
    count, until = 0, time.monotonic() + _WAIT_SECONDS
    held = [folder.name]
    with contextlib.suppress(BlockingIOError), locked(folder, until):
        # Another command would give segments other names.
        held = []
        for path in folder.glob(f".*{NEW}"):  # of a command that was killed
            path.unlink()
        for path in segments(folder):
            delete = _delete_rows if path.suffix == TABLE else _delete_lines
            try:
                with contextlib.suppress(FileNotFoundError), locked(path, until):
                    count += delete(path, run)
            except BlockingIOError:  # e.g. of a service of an earlier version, until it ends
                held.append(path.name)
    if held:
        raise ValueError(
            f"{folder} may have more, as other processes hold {', '.join(held[:3])}: {count:,} "
            "records were deleted; run the command again"
        )
    return count


def _delete_lines(path: Path, run: str) -> int:
    def is_of_run(line: bytes) -> bool:
        try:
            return bool(json.loads(line)["run"] == run)
        except (ValueError, TypeError, KeyError):
            return False  # of a process that was killed

    with path.open("rb") as file:
        if count := sum(map(is_of_run, file)):
            file.seek(0)
            with replacement(path) as new:
                new.writelines(line for line in file if not is_of_run(line))
    return count


def _delete_rows(path: Path, run: str) -> int:
    pa = pyarrow()
    with pa.parquet.ParquetFile(path) as file:
        table = file.read()
    is_other = [each != run for each in table["run"].to_pylist()]
    if not all(is_other):
        with replacement(path) as new:
            pa.parquet.write_table(table.filter(pa.array(is_other)), new, compression="zstd")
    path.with_suffix(LINES).unlink(missing_ok=True)  # see `segments`
    return is_other.count(False)
