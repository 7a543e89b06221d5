"""Files that callers send as `multipart/form-data`: streamed to disk, bounded, gone afterwards."""

import os
import tempfile
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import IO

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from rewardfleet.wire.errors import InvalidRequest

#: The part of a form that is the file.
FILE_FIELD = "video"

_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 64 * 1024


class HeldFile:
    """A file without a name, which is gone as soon as nobody holds it.

    That may be later than its request, as others can wait for the same computation.
    """

    def __init__(self, file: IO[bytes]) -> None:
        file.flush()
        self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)

    @property
    def path(self) -> str:
        """A path that reaches the file from this process."""
        return f"/proc/self/fd/{self.fd}"


@dataclass(frozen=True)
class Form:
    """What a form brought: its fields as text, and its one file."""

    fields: dict[str, str]
    file: HeldFile


async def read_form(headers: Headers, stream: AsyncGenerator[bytes, None]) -> Form:
    """Read a form with one file.

    Args:
        stream: The body, already bounded in bytes and time.

    Raises:
        InvalidRequest: It is no such form, or has no file, or two.
    """
    parser = MultiPartParser(
        headers, stream, max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    parser.spool_max_size = 0  # always a real file, which a decoder can open
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the form cannot be read: {error}; see RFC 7578") from None
    try:
        return _checked(form)
    finally:
        await form.close()


def _checked(form: FormData) -> Form:
    fields, file = {}, None
    for name, value in form.multi_items():
        if name in fields:
            raise InvalidRequest(f"the form has the field {name[:60]!r} twice")
        if isinstance(value, str):
            fields[name] = value
        elif name == FILE_FIELD:
            file = _held(value)
        else:
            raise InvalidRequest(f"the form's file is called {name[:60]!r}; call it {FILE_FIELD!r}")
    if file is None:
        raise InvalidRequest(
            f"the form has no file; send one part {FILE_FIELD!r} with a file name and the video"
        )
    return Form(fields, file)


def _held(upload: UploadFile) -> HeldFile:
    upload.file.fileno()  # rolls a spooled file over to disk
    return HeldFile(upload.file)


def held_bytes(content: bytes) -> HeldFile:
    """Hold bytes as a file, which a decoder can open."""
    with temporary_file() as file:
        file.write(content)
        return HeldFile(file)


def temporary_file() -> IO[bytes]:
    """Make a file without a name."""
    return tempfile.TemporaryFile(prefix="rewardfleet-")
