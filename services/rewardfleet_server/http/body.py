"""Request bodies: limited as they arrive, then decoded."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import numpy as np
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Receive

from rewardfleet.wire.errors import DeadlineExceeded, Forbidden, InvalidRequest, TooLarge
from rewardfleet.wire.frames import FRAMES_TYPE, ZSTD
from rewardfleet.wire.headers import FORWARDED_HOST_HEADER
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.system.anonymous_file import AnonymousFile
from rewardfleet_server.system.child_process import MemoryFile
from rewardfleet_server.system.started import DeadlinePassed, finish_by
from rewardfleet_server.system.threads import run_in_thread, usable_cores

from .body_parser import BodyParser, ComplexityLimits, check_complexity, parse_seconds
from .frames_body import FramesBody
from .guard import ClientDisconnected
from .routes import FORM_TYPE, Form, Route

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
        # A process for each thread that waits for one, and with which it ends.
        self._parsing = ThreadPoolExecutor(_PROCESSES, thread_name_prefix="decode-large-body")
        self._parsers = defaultdict[int, BodyParser](lambda: BodyParser(max_bytes))

    def announced_bytes(self, headers: Mapping[str, str], route: Route[Any]) -> int:
        """Check what the headers say about the body; return its bytes, 0 if they do not say.

        Args:
            headers: The headers of the request, with names in lower case.
            route: The route of the request.

        Raises:
            InvalidRequest: Its type or encoding is not accepted.
            Forbidden: A web page of another origin sent it.
            TooLarge: It is too large.
        """
        given = media_type(headers)
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
            raise _too_large(self._max_bytes)
        return announced

    async def read(
        self,
        request: Request,
        headers: Mapping[str, str],
        route: Route[DecodedT],
        on_size: Callable[[int], None],
    ) -> DecodedT:
        """Read and decode a body.

        Args:
            request: Its body has not been read.
            headers: Its headers, with names in lower case.
            route: How to decode it.
            on_size: Called with the number of its bytes so far, whenever some have arrived.

        Raises:
            InvalidRequest: It cannot be decoded.
            TooLarge: It is larger than announced or allowed.
            Overloaded: `on_size` raises it.
            DeadlineExceeded: It stopped arriving, or arrives too slowly.
        """
        given = media_type(headers)
        arriving = _arriving(request.receive, self._max_bytes, on_size)
        if given == FORM_TYPE and route.decode_form is not None:
            return route.decode_form(await _read_form(request.headers, _sliced(arriving)))
        if given == FRAMES_TYPE and route.frames_of is not None:
            body = FramesBody(
                await _collect_in_place(arriving, int(headers.get("content-length", 0))),
                is_compressed=_encoding(headers) == ZSTD,
                max_bytes=self._max_bytes,
            )
            return await body.decode(partial(self._decode, route), route.frames_of, on_size)
        return await self._decode(route, await _collect(arriving))

    async def _decode(self, route: Route[DecodedT], body: bytes | MemoryFile) -> DecodedT:
        """Decode JSON: in a thread, or in a child process if that takes long."""
        limits = ComplexityLimits(route.max_fields, route.max_values)
        decode = _decoder(route)
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
    """Yield the parts of a body, limited as they arrive; see `BodyReader.read` for errors.

    Args:
        max_bytes: Limit on all parts together.
        on_size: Called with the number of bytes so far, whenever some have arrived.
    """
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
            raise _too_large(max_bytes)
        on_size(size)
        yield part


def _too_large(max_bytes: int) -> TooLarge:
    limit = max_bytes / 2**20
    return TooLarge(f"the body is larger than this service accepts ({limit:g} MiB)")


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


def _decoder(route: Route[DecodedT]) -> Callable[[bytes], DecodedT]:
    if route.decode is not None:
        return route.decode
    assert route.request_model is not None  # noqa: S101 - it has a body
    return partial(validate_json, route.request_model)  # type: ignore[return-value] # the default


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


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body, in lower case and without parameters; "" if not given.

    Args:
        headers: The headers of the request, with names in lower case.
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_form(headers: Headers, stream: AsyncGenerator[bytes, None]) -> Form:
    """Read a form with one file; refuse anything else."""
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
                raise InvalidRequest(
                    f"the form's file is called {name[:60]!r}; call it {FILE_FIELD!r}"
                )
    finally:
        await form.close()
    if file is None:
        raise InvalidRequest(
            f"the form has no file; send one part {FILE_FIELD!r} with a file name and the video"
        )
    return Form(fields, file)
