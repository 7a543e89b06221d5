"""Files without a name, for content that a decoder wants as a file."""

import os
import tempfile
import weakref
from typing import IO


class AnonymousFile:
    """A file without a name. It is gone as soon as this object is.

    That may be later than its request, as others can wait for the same computation.
    """

    def __init__(self, file: IO[bytes]) -> None:
        file.flush()
        self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)

    @property
    def path(self) -> str:
        """A path that opens the file from this process."""
        return f"/proc/self/fd/{self.fd}"


def spool_bytes(content: bytes) -> AnonymousFile:
    """Write bytes to an anonymous file. Blocks."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return AnonymousFile(file)
