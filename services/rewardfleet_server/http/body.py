"""Request bodies: limited as they arrive, then decoded."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import numpy as np
import zstandard
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Receive

from rewardfleet.wire.errors import DeadlineExceeded, Forbidden, InvalidRequest, TooLarge
from rewardfleet.wire.frames import FRAMES_TYPE, LENGTH_BYTES, ZSTD
from rewardfleet.wire.headers import FORWARDED_HOST_HEADER
from rewardfleet_server.system.anonymous_file import AnonymousFile
from rewardfleet_server.system.child_process import MemoryFile
from rewardfleet_server.system.started import ClientDisconnected, DeadlinePassed, finish_by
from rewardfleet_server.system.threads import run_in_thread, usable_cores

from .body_parser import BodyParser, ComplexityLimits, check_complexity, parse_seconds
from .routes import FORM_TYPE, AttachedFrames, Form, Route

DecodedT = TypeVar("DecodedT")

#: Bodies above this size are decoded off the event loop.
_SMALL_BODY = 64 * 1024
#: Bodies that would hold the interpreter for longer are decoded in another process: other requests
#: would wait for so long.
_HOLD_SECONDS = 0.02
#: Such processes, of which another one starts only while the others are busy.
_PROCESSES = max(2, min(usable_cores(), 4))
#: Bodies above this size are stored as files in memory.
_LARGE_BODY = 1024 * 1024
#: Seconds without any byte after which a body is given up.
_SILENCE_SECONDS = 5.0
#: A body takes at most this long, and a second more for as many bytes.
_FIRST_SECONDS, _MIN_BYTES_PER_SECOND = 10.0, 16 * 1024
#: The parser of forms gets this much of one at a time, and other requests get their turn: it takes
#: up to a microsecond per byte.
_FORM_SLICE = 8 * 1024

#: The most memory of a decompressor: what level 19 of zstd needs.
_MAX_WINDOW_BYTES = 8 * 2**20

#: The part of a form that is the file.
FILE_FIELD = "video"
_MAX_FORM_FIELDS = 32
_MAX_FORM_FIELD_BYTES = 64 * 1024


class BodyReader:
    """Reads and decodes the bodies of one service's requests."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # One thread: decoding holds the interpreter, and a second one would only slow the loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode-body")
        # A process for each thread that waits for one, and with which it ends.
        self._parsing = ThreadPoolExecutor(_PROCESSES, thread_name_prefix="decode-large-body")
        self._parsers = defaultdict[int, BodyParser](lambda: BodyParser(max_bytes))

    def announced_bytes(self, headers: Mapping[str, str], route: Route[Any]) -> int:
        """Check what headers, in lower case, say about a body; return its bytes, 0 if unknown.

        Raises:
            InvalidRequest: Its type or encoding is not accepted.
            Forbidden: A web page of another origin sent it.
            TooLarge: It is too large.
        """
        given = _media_type(headers)
        if given not in route.media_types:
            accepted = " or ".join(f"`Content-Type: {each}`" for each in route.media_types)
            raise InvalidRequest(f"send {accepted} (got {given[:60]!r})")
        # Web pages can post forms anywhere. Browsers send the page's origin, programs do not.
        origin = headers.get("origin")
        host = headers.get(FORWARDED_HOST_HEADER, headers.get("host"))
        if origin is not None and origin.partition("://")[2] != host:
            raise Forbidden(f"web pages of {origin[:100]} may not use this service")
        encoding = _encoding(headers)
        if encoding != "identity" and (encoding, given) != (ZSTD, FRAMES_TYPE):
            accepted = f"send none, or {ZSTD}" if given == FRAMES_TYPE else "send none"
            raise InvalidRequest(f"Content-Encoding {encoding[:60]!r} is not accepted; {accepted}")
        announced = int(headers.get("content-length", 0))
        if announced > self._max_bytes:
            raise _too_large("body is", self._max_bytes)
        return announced

    async def read(
        self,
        request: Request,
        headers: Mapping[str, str],
        route: Route[DecodedT],
        on_size: Callable[[int], None],
    ) -> DecodedT:
        """Read and decode the body of a request.

        Args:
            headers: Its headers, with names in lower case.
            on_size: Called with the number of its bytes so far, whenever some have arrived.

        Raises:
            InvalidRequest: It cannot be decoded.
            TooLarge: It is larger than announced or allowed.
            Overloaded: `on_size` raises it.
            DeadlineExceeded: It stopped arriving, or arrives too slowly.
        """
        given = _media_type(headers)
        arriving = _arriving(request.receive, self._max_bytes, on_size)
        if given == FORM_TYPE and route.decode_form is not None:
            return route.decode_form(await _read_form(request.headers, _sliced(arriving)))
        if given == FRAMES_TYPE and route.frames_of is not None:
            content = await _collect_in_place(arriving, int(headers.get("content-length", 0)))
            body = _FramesBody(content, self._max_bytes, is_compressed=_encoding(headers) == ZSTD)
            return await body.decode(partial(self._decode, route), route.frames_of, on_size)
        return await self._decode(route, await _collect(arriving))

    async def _decode(self, route: Route[DecodedT], body: bytes | MemoryFile) -> DecodedT:
        """Decode JSON: in a thread, or in a child process if that takes long."""
        limits = ComplexityLimits(route.max_fields, route.max_values)
        decode = route.decoder
        if isinstance(body, bytes) and len(body) <= _SMALL_BODY:
            check_complexity(body, limits)
            return decode(body)
        decoded = await run_in_thread(self._thread, partial(_decode_if_fast, decode, body, limits))
        if decoded is not None:
            return decoded
        file = MemoryFile(body) if isinstance(body, bytes) else body
        return await run_in_thread(
            self._parsing, lambda: self._parsers[get_ident()].decode(decode, file, limits)
        )

    def close(self) -> None:
        """End the threads and the processes."""
        for each in (self._thread, self._parsing):
            each.shutdown(wait=False, cancel_futures=True)
        for parser in [*self._parsers.values()]:
            parser.close()


async def _arriving(
    receive: Receive, max_bytes: int, on_size: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body, limited as they arrive; see `BodyReader.read`."""
    loop = asyncio.get_running_loop()
    limit, size, is_complete = loop.time() + _FIRST_SECONDS, 0, False
    while not is_complete:
        now = loop.time()
        remaining = limit + size / _MIN_BYTES_PER_SECOND - now
        until = now + min(_SILENCE_SECONDS, remaining)
        try:
            message = await finish_by(until, receive())
        except DeadlinePassed:
            reason = (
                f"no more of the body arrived within {_SILENCE_SECONDS:g} s"
                if remaining > _SILENCE_SECONDS
                else f"the body arrives too slowly: {size} bytes so far"
            )
            raise DeadlineExceeded(reason) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        is_complete = not message.get("more_body", False)
        size += len(part)
        if size > max_bytes:
            raise _too_large("body is", max_bytes)
        on_size(size)
        yield part


def _too_large(what: str, max_bytes: int) -> TooLarge:
    return TooLarge(f"the {what} larger than this service accepts ({max_bytes / 2**20:g} MiB)")


def _decode_if_fast(
    decode: Callable[[bytes], DecodedT], body: bytes | MemoryFile, limits: ComplexityLimits
) -> DecodedT | None:
    """Decode a body, or return None if that holds the interpreter for long."""
    # A sample needs a tenth of the time of reading 60 MB.
    if parse_seconds(body if isinstance(body, bytes) else body.mapped()) > _HOLD_SECONDS:
        return None
    content = body if isinstance(body, bytes) else body.read()
    check_complexity(content, limits)
    return decode(content)


async def _collect(arriving: AsyncGenerator[bytes, None]) -> bytes | MemoryFile:
    """Return a body, a large one as a file in memory."""
    parts: list[bytes] = []
    size, file = 0, None
    async for part in arriving:
        if file is not None:
            file.write(part)
            continue
        parts.append(part)
        size += len(part)
        if size > _LARGE_BODY:
            file = MemoryFile(*parts)
            parts.clear()
    return b"".join(parts) if file is None else file


async def _collect_in_place(arriving: AsyncGenerator[bytes, None], announced: int) -> memoryview:
    """Return a body of which, if its size was announced, a megabyte at most is copied again.

    The memory is numpy's, which is not zeroed, and in pages of 2 MB if it is large: a body of 60 MB
    that grows in others holds up the event loop for up to 130 ms. There is room for all that was
    announced once a megabyte has arrived, as such a page counts whatever there is in it.
    """
    memory, size = np.empty(min(announced, _LARGE_BODY) or 1, np.uint8).data, 0
    async for part in arriving:
        end = size + len(part)
        if end > len(memory):
            grown = np.empty(max(announced, 2 * end), np.uint8).data
            grown[:size] = memory[:size]
            memory = grown
        memory[size:end] = part
        size = end
    return memory[:size].toreadonly()


async def _sliced(arriving: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async for part in arriving:
        for start in range(0, len(part), _FORM_SLICE):
            yield part[start : start + _FORM_SLICE]
            await asyncio.sleep(0)


def _encoding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body, in lower case and without parameters; "" if not given."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_form(headers: Headers, stream: AsyncGenerator[bytes, None]) -> Form:
    """Read a form with one file; refuse anything else."""
    limits = {"max_fields": _MAX_FORM_FIELDS, "max_part_size": _MAX_FORM_FIELD_BYTES}
    parser = MultiPartParser(headers, stream, max_files=1, **limits)
    parser.spool_max_size = 0  # always a real file, which a decoder can open
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the form cannot be read: {error}; see RFC 7578") from None
    fields, file = {}, None
    try:
        for name, value in form.multi_items():
            if name in fields:
                raise InvalidRequest(f"the form has the field {name[:60]!r} twice")
            if isinstance(value, str):
                fields[name] = value
            elif name == FILE_FIELD:
                value.file.fileno()  # moves a spooled file to disk
                file = AnonymousFile(value.file)
            else:
                reason = f"the form's file is called {name[:60]!r}; call it {FILE_FIELD!r}"
                raise InvalidRequest(reason)
    finally:
        await form.close()
    if file is None:
        advice = f"send one part {FILE_FIELD!r} with a file name and the video"
        raise InvalidRequest(f"the form has no file; {advice}")
    return Form(fields, file)


class _FramesBody:
    """A body of the type `FRAMES_TYPE`, which is decompressed as far as it is read."""

    def __init__(self, body: memoryview, max_bytes: int, *, is_compressed: bool) -> None:
        self._rest, self._arrived = body, len(body)
        self._max_bytes = max_bytes  # without compression
        self._stream: zstandard.ZstdDecompressionReader | None = None
        if is_compressed:
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            self._stream = decompressor.stream_reader(self._rest, read_across_frames=True)

    async def decode(
        self,
        decode: Callable[[bytes], Awaitable[DecodedT]],
        frames_of: Callable[[DecodedT], AttachedFrames],
        on_size: Callable[[int], None],
    ) -> DecodedT:
        """Decode the JSON, and give its frames their pixels, whose bytes are limited before."""
        length = int.from_bytes(await self._take(LENGTH_BYTES), "little")
        if length > self._max_bytes:
            raise InvalidRequest(
                f"the JSON in a body of the type {FRAMES_TYPE} may have {self._max_bytes} bytes; "
                f"its first {LENGTH_BYTES} bytes state {length}"
            )
        if self._stream is not None:
            on_size(self._arrived + length)
        decoded = await decode(bytes(await self._take(length)))
        frames, is_complete = frames_of(decoded)
        size = max((each.end for each in frames), default=0)
        if length + size > self._max_bytes:
            raise _too_large("frames are", self._max_bytes)
        if self._stream is not None:
            on_size(self._arrived + length + size)
        pixels = await self._take(size)
        for each in frames:
            each.set_pixels(pixels[each.offset : each.end])
        if is_complete and await self._next(1):
            raise InvalidRequest(f"the body is longer than the {size} bytes of its frames")
        return decoded

    async def _take(self, size: int) -> memoryview:
        """Return the next `size` bytes; refuse fewer."""
        part = await self._next(size)
        if len(part) < size:
            raise InvalidRequest(f"the body ends {size - len(part)} bytes too early")
        return part

    async def _next(self, size: int) -> memoryview:
        """Return the next bytes, at most `size`; refuse what cannot be decompressed."""
        if self._stream is None:
            part, self._rest = self._rest[:size], self._rest[size:]
            return part
        try:
            return memoryview(await asyncio.to_thread(self._stream.read, size))
        except zstandard.ZstdError as error:
            raise InvalidRequest(f"the body cannot be decompressed: {error}") from None
