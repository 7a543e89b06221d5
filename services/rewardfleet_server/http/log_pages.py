"""The score log over HTTP, for who has a key of its own: callers see no scores of others."""

import asyncio
import hashlib
import os
import re
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rewardfleet.score_log.segments import segments
from rewardfleet.wire import log_segments as wire
from rewardfleet.wire.errors import InvalidRequest, NotFound, Unavailable
from rewardfleet_server.settings import ServerSettings
from rewardfleet_server.system.threads import run_in_thread

from .auth import ApiKeys
from .pages import KEY_PROBLEMS, PROBLEMS, Pages

T = TypeVar("T")

#: Seconds in which a disk must answer.
_SECONDS = 10.0
#: Of the number of a byte.
_DIGITS = "^[0-9]{1,15}$"
_OFFSET = Field(json_schema_extra={"pattern": _DIGITS})


def add_log_pages(pages: Pages, settings: ServerSettings, api_keys: ApiKeys) -> None:
    """Add the routes of the score log; ValueError if its key file has no key, or an API key."""
    folder, key_file = settings.score_log, settings.score_log_key_file
    keys = ApiKeys(key_file, "score_log_key_file")
    if keys.shares_a_key_with(api_keys):
        reason = "an API key is in it, which callers know; use another key"
        raise ValueError(f"score_log_key_file {key_file}: {reason}")
    # One thread: a disk that does not answer holds no other.
    thread = ThreadPoolExecutor(1, thread_name_prefix="read-score-log")
    problems = {**KEY_PROBLEMS, 404: PROBLEMS[404], 503: PROBLEMS[503]}

    async def read(request: Request, from_folder: Callable[[Path], T]) -> T:
        if folder is None or key_file is None:
            raise NotFound(
                "this service does not show its score log: start it with --score-log FOLDER and "
                "--set score_log_key_file=FILE"
            )
        keys.check(request.headers.get("authorization"))
        try:
            async with asyncio.timeout(_SECONDS):
                return await run_in_thread(thread, partial(from_folder, folder))
        except TimeoutError:
            raise Unavailable("the score log cannot be read now", retry_after=1) from None

    @pages.get(
        wire.PATH, summary="The files of the score log, for its own keys", responses=problems
    )
    async def log_segments(request: Request) -> wire.LogSegments:
        return await read(request, _list)

    @pages.get(
        wire.PATH + "/{name}",
        summary="The content of one of these files from an offset, for its own keys",
        response_class=Response,
        responses={**problems, 422: PROBLEMS[422]},
    )
    async def log_segment(
        request: Request, name: str, offset: Annotated[str, _OFFSET] = "0"
    ) -> Response:
        if not re.fullmatch(_DIGITS, offset):
            raise InvalidRequest(f"offset: give the number of a byte, not {offset[:20]!r}")
        content = await read(request, lambda at: _content(at, name, int(offset)))
        return Response(content, media_type="application/octet-stream")


def _list(folder: Path) -> wire.LogSegments:
    """Return the segments of a log. Blocks."""
    found = []
    for path in segments(folder)[-wire.MAX_SEGMENTS :]:
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:  # it was replaced or deleted
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(wire.LogSegment(name=path.name, size=status.st_size))
    place = f"{socket.gethostname()}:{folder.resolve()}"
    return wire.LogSegments(log=hashlib.sha256(place.encode()).hexdigest()[:32], segments=found)


def _content(folder: Path, name: str, offset: int) -> bytes:
    """Return at most `MAX_CHUNK_BYTES` of a segment from an offset; none at its end. Blocks."""
    gone = NotFound(f"no segment {name[:100]!r} of this size: list the segments again")
    if not wire.NAME.fullmatch(name):
        raise gone
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise gone from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or offset > status.st_size:
            raise gone
        return os.pread(fd, wire.MAX_CHUNK_BYTES, offset)
    finally:
        os.close(fd)
