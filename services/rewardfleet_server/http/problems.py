"""Pages and failures as HTTP responses."""

import math
from collections.abc import Collection

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.responses import Response

from rewardfleet.wire.chat import ChatError
from rewardfleet.wire.errors import ErrorKind, MethodNotAllowed, NotFound, RewardFleetError
from rewardfleet.wire.headers import REQUEST_ID_HEADER

#: The media type of failures.
PROBLEM_TYPE = "application/problem+json"


def page_response(content: object) -> Response:
    """Return the content of a page as a response: bytes are metrics, anything else is JSON."""
    if isinstance(content, bytes):
        return Response(content, media_type=CONTENT_TYPE_LATEST)
    return Response(to_json(content), media_type="application/json")


def no_endpoint(path: str) -> NotFound:
    """Return the failure of a request for a path that the service does not have."""
    return NotFound(f"no endpoint {path[:100]!r}; GET /docs lists them")


def wrong_method(path: str, method: str, allowed: Collection[str]) -> MethodNotAllowed:
    """Return the failure of a method that a path does not take; of those it does, GET has HEAD."""
    methods = sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])})
    error = MethodNotAllowed(f"{path[:100]} takes {', '.join(methods)}, not {method[:20]}")
    error.allowed = methods
    return error


def problem_response(
    error: RewardFleetError, request_id: str | None = None, model: type[ChatError] | None = None
) -> Response:
    """Return a failure as a response: `application/problem+json` (RFC 9457), or another model."""
    headers = {} if request_id is None else {REQUEST_ID_HEADER: request_id}
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if error.kind is ErrorKind.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    problem = error.problem(request_id)
    body = problem if model is None else model.from_problem(problem)
    return Response(
        body.model_dump_json(),
        status_code=error.status,
        media_type=PROBLEM_TYPE if model is None else "application/json",
        headers=headers,
    )
