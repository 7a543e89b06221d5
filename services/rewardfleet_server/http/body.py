"""Request bodies: limited as they arrive, then decoded."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from rewardfleet.wire.errors import DeadlineExceeded, Forbidden, InvalidRequest, TooLarge
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.anonymous_file import AnonymousFile
from rewardfleet_server.threads import run_in_thread

from .guard import ClientDisconnected
from .routes import Form, Route

DecodedT = TypeVar("DecodedT")

#: Bodies above this size are decoded off the event loop.
_SMALL_BODY = 64 * 1024
#: Seconds between two parts of a body, so that a silent caller takes up no capacity for long.
_SILENCE_SECONDS = 30.0
#: A string of JSON. What it contains, such as a program, is not limited here.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

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

    def announced_bytes(self, headers: Mapping[str, str], *, is_form: bool) -> int:
        """Check what the headers say about the body; return how many bytes it may have.

        Args:
            headers: Of the request, with names in lower case.
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
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Forbidden(f"web pages of {origin[:100]} may not use this service")
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise InvalidRequest(f"Content-Encoding {encoding[:60]!r} is not accepted; send none")
        announced = int(headers.get("content-length", self._max_bytes))
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
            is_form: As above.
            on_size: Called with the number of its bytes, unless it is a form, whose file is on
                disk.

        Raises:
            InvalidRequest: It cannot be decoded.
            TooLarge: It is larger than announced or allowed.
            DeadlineExceeded: It stopped arriving.
            TimeoutError: The deadline has passed.
        """
        async with asyncio.timeout_at(deadline):
            stream = self._limited(request)
            if is_form and route.decode_form is not None:
                return route.decode_form(await _read_form(request.headers, stream))
            body = b"".join([chunk async for chunk in stream])
        on_size(len(body))
        if len(body) <= _SMALL_BODY:
            return _decode(route, body)
        async with asyncio.timeout_at(deadline):
            return await run_in_thread(self._thread, lambda: _decode(route, body))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _limited(self, request: Request) -> AsyncGenerator[bytes, None]:
        size, is_complete = 0, False
        while not is_complete:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    message = await request.receive()
            except TimeoutError:
                reason = f"no more of the body arrived within {_SILENCE_SECONDS:g} s"
                raise DeadlineExceeded(reason) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk = message.get("body", b"")
            is_complete = not message.get("more_body", False)
            size += len(chunk)
            if size > self._max_bytes:
                raise self._too_large()
            yield chunk

    def _too_large(self) -> TooLarge:
        limit = self._max_bytes / 2**20
        return TooLarge(f"the body is larger than this service accepts ({limit:g} MiB)")


def _decode(route: Route[DecodedT], body: bytes) -> DecodedT:
    check_complexity(body, route.max_fields, route.max_values)
    if route.decode is not None:
        return route.decode(body)
    assert route.request_model is not None  # noqa: S101 - it has a body
    decoded: DecodedT = validate_json(route.request_model, body)  # type: ignore[assignment] # the default
    return decoded


def check_complexity(body: bytes, max_fields: int, max_values: int) -> None:
    """Refuse a body that would take far more memory and time than its bytes.

    Raises:
        InvalidRequest: It has too many fields or values.
    """
    if body.count(b":") <= max_fields and body.count(b",") <= max_values:
        return
    outside_strings = _STRING.sub(b"", body)
    if outside_strings.count(b":") > max_fields or outside_strings.count(b",") > max_values:
        raise InvalidRequest(f"the body has too many fields or values; at most {max_fields} fields")


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body, in lower case and without parameters; "" if not given.

    Args:
        headers: Of the request, with names in lower case.
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
            file = _spooled(value)
        else:
            raise InvalidRequest(f"the form's file is called {name[:60]!r}; call it {FILE_FIELD!r}")
    if file is None:
        raise InvalidRequest(
            f"the form has no file; send one part {FILE_FIELD!r} with a file name and the video"
        )
    return Form(fields, file)


def _spooled(upload: UploadFile) -> AnonymousFile:
    upload.file.fileno()  # moves a spooled file to disk
    return AnonymousFile(upload.file)
