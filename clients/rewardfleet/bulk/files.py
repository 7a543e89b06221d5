"""Files that are there when they are complete."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

#: Ends the name of a file that is not complete.
NEW = ".new"
#: Who may read and write a file: its owner.
OWNER_ONLY = 0o600


def temporary_name(target: Path) -> str:
    """Return the name that a file has until it is complete, in the same folder."""
    return f".{target.name}{NEW}"


@contextlib.contextmanager
def new_file(target: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Give the block a file that replaces `target` once the block has written it."""
    temporary = target.with_name(temporary_name(target))
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(target)
