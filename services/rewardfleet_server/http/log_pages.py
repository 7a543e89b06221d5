"""The score log over HTTP, for who has a key of its own: callers see no scores of others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rewardfleet.score_log.log_files import list_segments, read_segment
from rewardfleet.wire.errors import InvalidRequest, NotFound, Unavailable
from rewardfleet.wire.log_segments import PATH, LogSegments
from rewardfleet_server.settings import ServerSettings
from rewardfleet_server.system.threads import run_in_thread

from .auth import ApiKeys
from .openapi import KEY_PROBLEMS, PROBLEMS
from .pages import Pages

T = TypeVar("T")

#: Seconds in which a disk must answer.
_SECONDS = 10.0
_MAX_DIGITS = 15
#: Documented only.
_OFFSET = Field(json_schema_extra={"pattern": f"^[0-9]{{1,{_MAX_DIGITS}}}$"})


def add_log_pages(pages: Pages, settings: ServerSettings, api_keys: ApiKeys) -> None:
    """Add the routes that show the score log.

    Raises:
        ValueError: The key file has no key, or an API key.
        OSError: It cannot be read.
    """
    folder, keys = settings.score_log, ApiKeys(settings.score_log_key_file, "score_log_key_file")
    if keys.shares_a_key_with(api_keys):
        file = f"score_log_key_file {settings.score_log_key_file}"
        raise ValueError(f"{file}: an API key is in it, which callers know; use another key")
    # One thread: a disk that does not answer holds no other.
    thread = ThreadPoolExecutor(1, thread_name_prefix="read-score-log")
    problems = {**KEY_PROBLEMS, 404: PROBLEMS[404], 503: PROBLEMS[503]}

    async def read(request: Request, from_folder: Callable[[Path], T]) -> T:
        if folder is None or settings.score_log_key_file is None:
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

    @pages.get(PATH, summary="The files of the score log, for its own keys", responses=problems)
    async def log_segments(request: Request) -> LogSegments:
        return await read(request, list_segments)

    @pages.get(
        PATH + "/{name}",
        summary="The content of one of these files from an offset, for its own keys",
        response_class=Response,
        responses={**problems, 422: PROBLEMS[422]},
    )
    async def log_segment(
        request: Request, name: str, version: str = "", offset: Annotated[str, _OFFSET] = "0"
    ) -> Response:
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= _MAX_DIGITS):
            raise InvalidRequest(f"offset: give the number of a byte, not {offset[:20]!r}")
        content = await read(request, lambda at: read_segment(at, name, version, int(offset)))
        return Response(content, media_type="application/octet-stream")
