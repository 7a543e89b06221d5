"""Request bodies: limited as they arrive, then decoded."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from rewardfleet.wire.errors import DeadlineExceeded, Forbidden, InvalidRequest, TooLarge
from rewardfleet.wire.headers import FORWARDED_HOST_HEADER
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.system.anonymous_file import AnonymousFile
from rewardfleet_server.system.child_process import MemoryFile
from rewardfleet_server.system.threads import run_in_thread

from .body_parser import BodyParser, ComplexityLimits, check_complexity, is_simple
from .guard import ClientDisconnected
from .routes import Form, Route

DecodedT = TypeVar("DecodedT")

#: Bodies above this size are decoded off the event loop.
_SMALL_BODY = 64 * 1024
#: Bodies above this size, or with more fields or values, are decoded in another process: parsing
#: them would hold the interpreter for longer than other requests can wait.
_LARGE_BODY = 1024 * 1024
_MAX_FIELDS = _MAX_VALUES = 50_000
#: Seconds without any byte after which a body is given up.
_SILENCE_SECONDS = 5.0
#: A body takes at most this long, and a second more for as many bytes.
_FIRST_SECONDS, _MIN_BYTES_PER_SECOND = 10.0, 16 * 1024
#: The parser of forms gets this much of one at a time, and other requests get their turn: it takes
#: up to a microsecond per byte.
_FORM_SLICE = 8 * 1024

#: The part of a form that is the file.
FILE_FIELD = "video"
_MAX_FORM_FIELDS = 32
_MAX_FORM_FIELD_BYTES = 64 * 1024


class BodyReader:
    """Reads and decodes the bodies of one service's requests.

    Args:
        max_bytes: Limit on one body.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # One thread: decoding holds the interpreter, and a second one would only slow the loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode-body")
        self._parser = BodyParser(max_bytes)
        # The thread that waits for the process, which ends with it.
        self._parser_thread = ThreadPoolExecutor(1, thread_name_prefix="decode-large-body")

    def announced_bytes(self, headers: Mapping[str, str], *, is_form: bool) -> int:
        """Check what the headers say about the body; return its bytes, 0 if they do not say.

        Args:
            headers: The headers of the request, with names in lower case.
            is_form: Whether it is a form that the route accepts.

        Raises:
            InvalidRequest: Its type or encoding is not accepted.
            Forbidden: A web page of another origin sent it.
            TooLarge: It is too large.
        """
        if not is_form and media_type(headers) != "application/json":
            content_type = headers.get("content-type", "")[:60]
            raise InvalidRequest(f"send `Content-Type: application/json` (got {content_type!r})")
        # Web pages can post forms anywhere. Browsers send the page's origin, programs do not.
        origin = headers.get("origin")
        host = headers.get(FORWARDED_HOST_HEADER, headers.get("host"))
        if origin is not None and origin.partition("://")[2] != host:
            raise Forbidden(f"web pages of {origin[:100]} may not use this service")
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise InvalidRequest(f"Content-Encoding {encoding[:60]!r} is not accepted; send none")
        announced = int(headers.get("content-length", 0))
        if announced > self._max_bytes:
            raise self._too_large()
        return announced

    async def read(
        self,
        request: Request,
        route: Route[DecodedT],
        deadline: float | None,
        *,
        is_form: bool,
        on_size: Callable[[int], None],
    ) -> DecodedT:
        """Read and decode a body.

        Args:
            request: Its body has not been read.
            route: How to decode it.
            deadline: Time of the event loop's clock by which it must be decoded.
            is_form: Whether it is a form that the route accepts.
            on_size: Called with the number of its bytes so far, whenever some have arrived.

        Raises:
            InvalidRequest: It cannot be decoded.
            TooLarge: It is larger than announced or allowed.
            Overloaded: `on_size` raises it.
            DeadlineExceeded: It stopped arriving, or arrives too slowly.
            TimeoutError: The deadline has passed.
        """
        async with asyncio.timeout_at(deadline):
            stream = self._limited(request, on_size)
            if is_form and route.decode_form is not None:
                return route.decode_form(await _read_form(request.headers, _sliced(stream)))
            body = await _collect(stream)
        limits = ComplexityLimits(route.max_fields, route.max_values)
        decode = _decoder(route)
        if isinstance(body, bytes):
            if len(body) <= _SMALL_BODY:
                check_complexity(body, limits)
                return decode(body)
            few = ComplexityLimits(min(limits.fields, _MAX_FIELDS), min(limits.values, _MAX_VALUES))
            if is_simple(body, few):
                async with asyncio.timeout_at(deadline):
                    return await run_in_thread(self._thread, partial(decode, body))
        file = _in_memory_file(body) if isinstance(body, bytes) else body
        async with asyncio.timeout_at(deadline):
            return await run_in_thread(
                self._parser_thread, lambda: self._parser.decode(decode, file, limits)
            )

    def close(self) -> None:
        """End the threads and the process."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._parser.close()
        self._parser_thread.shutdown(wait=False, cancel_futures=True)

    async def _limited(
        self, request: Request, on_size: Callable[[int], None]
    ) -> AsyncGenerator[bytes, None]:
        now = asyncio.get_running_loop().time
        limit = now() + _FIRST_SECONDS
        size, is_complete = 0, False
        while not is_complete:
            remaining = limit + size / _MIN_BYTES_PER_SECOND - now()
            try:
                async with asyncio.timeout(min(_SILENCE_SECONDS, remaining)):
                    message = await request.receive()
            except TimeoutError:
                reason = (
                    f"no more of the body arrived within {_SILENCE_SECONDS:g} s"
                    if remaining > _SILENCE_SECONDS
                    else f"the body arrives too slowly: {size} bytes so far"
                )
                raise DeadlineExceeded(reason) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk = message.get("body", b"")
            is_complete = not message.get("more_body", False)
            size += len(chunk)
            if size > self._max_bytes:
                raise self._too_large()
            on_size(size)
            yield chunk

    def _too_large(self) -> TooLarge:
        limit = self._max_bytes / 2**20
        return TooLarge(f"the body is larger than this service accepts ({limit:g} MiB)")


def _decoder(route: Route[DecodedT]) -> Callable[[bytes], DecodedT]:
    if route.decode is not None:
        return route.decode
    assert route.request_model is not None  # noqa: S101 - it has a body
    return partial(validate_json, route.request_model)  # type: ignore[return-value] # the default


async def _collect(stream: AsyncGenerator[bytes, None]) -> bytes | MemoryFile:
    """Return a body, a large one as a file in memory."""
    parts: list[bytes] = []
    size, file = 0, None
    async for part in stream:
        if file is not None:
            file.write(part)
            continue
        parts.append(part)
        size += len(part)
        if size > _LARGE_BODY:
            file = _in_memory_file(*parts)
            parts.clear()
    return b"".join(parts) if file is None else file


def _in_memory_file(*parts: bytes) -> MemoryFile:
    file = MemoryFile()
    for part in parts:
        file.write(part)
    return file


async def _sliced(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async for part in stream:
        for start in range(0, len(part), _FORM_SLICE):
            yield part[start : start + _FORM_SLICE]
            await asyncio.sleep(0)


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body, in lower case and without parameters; "" if not given.

    Args:
        headers: The headers of the request, with names in lower case.
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_form(headers: Headers, stream: AsyncGenerator[bytes, None]) -> Form:
    """Read a form with one file.

    Raises:
        InvalidRequest: It is not such a form, or has no file, or two.
    """
    parser = MultiPartParser(
        headers,
        stream,
        max_files=1,
        max_fields=_MAX_FORM_FIELDS,
        max_part_size=_MAX_FORM_FIELD_BYTES,
    )
    parser.spool_max_size = 0  # always a real file, which a decoder can open
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the form cannot be read: {error}; see RFC 7578") from None
    try:
        return _check_form(form)
    finally:
        await form.close()


def _check_form(form: FormData) -> Form:
    fields, file = {}, None
    for name, value in form.multi_items():
        if name in fields:
            raise InvalidRequest(f"the form has the field {name[:60]!r} twice")
        if isinstance(value, str):
            fields[name] = value
        elif name == FILE_FIELD:
            value.file.fileno()  # moves a spooled file to disk
            file = AnonymousFile(value.file)
        else:
            raise InvalidRequest(f"the form's file is called {name[:60]!r}; call it {FILE_FIELD!r}")
    if file is None:
        raise InvalidRequest(
            f"the form has no file; send one part {FILE_FIELD!r} with a file name and the video"
        )
    return Form(fields, file)
