"""What happens to a request, in order:

authenticate → admit → read and decode the body → handler (→ engine) → response.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rewardfleet.wire.errors import InvalidRequest, RewardFleetError, Unavailable
from rewardfleet.wire.headers import (
    CALL_TIMEOUT_HEADER,
    FALLBACK_REWARDS_HEADER,
    MAX_FALLBACK_REWARDS,
    REQUEST_ID_HEADER,
    TIMEOUT_HEADER,
)
from rewardfleet_server.admission import Admission
from rewardfleet_server.engine import as_failure
from rewardfleet_server.telemetry import REQUEST_ID, RequestContext, Telemetry, new_request_id
from rewardfleet_server.tracing import Tracer

from .auth import ApiKeys
from .body import BodyReader, media_type
from .guard import ClientDisconnected, Guard
from .problems import problem_response
from .routes import FailureModel, Route


class Dispatcher:
    """Answers the requests of one service.

    Args:
        keys: The accepted API keys.
        admission: Limits the requests that are admitted.
        bodies: Reads and decodes bodies.
        telemetry: Counts requests.
        deadline_s: Seconds for a request; a caller may ask for fewer in `X-Request-Timeout`.
        tracer: Begins the span of each request; None without traces.
    """

    def __init__(
        self,
        *,
        keys: ApiKeys,
        admission: Admission,
        bodies: BodyReader,
        telemetry: Telemetry,
        deadline_s: float,
        tracer: Tracer | None = None,
    ) -> None:
        self._keys = keys
        self._admission = admission
        self._bodies = bodies
        self._telemetry = telemetry
        self._deadline_s = deadline_s
        self._tracer = tracer
        self._requests: dict[asyncio.Task[Any] | None, RequestContext] = {}
        self._cancelled = False

    async def handle(
        self, route: Route[Any], request: Request, parameters: Mapping[str, str]
    ) -> Response:
        """Answer one request. Every failure becomes a problem response.

        Args:
            route: At the request's path, for its method.
            request: The request.
            parameters: Of its path.
        """
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.raw
        }
        context = RequestContext(
            route.path, new_request_id(headers.get(REQUEST_ID_HEADER)), parameters=parameters
        )
        REQUEST_ID.set(context.request_id)
        if self._tracer is not None:
            name = f"{request.method} {route.path}"
            context.span = self._tracer.begin_request(name, headers)
        task = asyncio.current_task()
        self._requests[task] = context
        try:
            content = await self._answer(route, request, headers, context)
        except ClientDisconnected:
            self._telemetry.record_response(context, 499, None, "the caller disconnected")
            return Response(status_code=499)
        except asyncio.CancelledError:
            if not self._cancelled:
                if context.span is not None:
                    context.span.end("cancelled")
                raise
            error = Unavailable("the service is shutting down", retry_after=1)
            return self._problem(route, error, context)
        except Exception as error:  # noqa: BLE001 - every failure becomes a problem
            return self._problem(route, as_failure(error, context, overdue=True), context)
        finally:
            del self._requests[task]
        self._telemetry.record_response(context, 200, None)
        return Response(
            content, media_type="application/json", headers={REQUEST_ID_HEADER: context.request_id}
        )

    async def _answer(
        self,
        route: Route[Any],
        request: Request,
        headers: Mapping[str, str],
        context: RequestContext,
    ) -> str | bytes:
        self._keys.check(headers.get("authorization"))
        if FALLBACK_REWARDS_HEADER in headers:
            context.fallback_rewards = _count(headers[FALLBACK_REWARDS_HEADER])
        context.timeout_s = self._seconds(headers, TIMEOUT_HEADER) or self._deadline_s
        context.call_timeout_s = self._seconds(headers, CALL_TIMEOUT_HEADER) or context.timeout_s
        deadline = context.deadline
        has_body = route.request_model is not None
        is_form = route.decode_form is not None and media_type(headers) == "multipart/form-data"
        announced = self._bodies.announced_bytes(headers, is_form=is_form) if has_body else 0
        with self._admission.admit(announced) as resize:
            try:
                decoded = has_body and await self._bodies.read(
                    request, route, deadline, is_form=is_form, on_size=resize
                )
            except InvalidRequest:
                if route.scores:
                    self._telemetry.record_failure(context)
                raise
            context.stage = "response"
            async with Guard(request, deadline):
                response = await route.handler(decoded, context)
        return response if isinstance(response, bytes) else response.model_dump_json()

    def refuse(
        self, request: Request, error: RewardFleetError, model: type[FailureModel] | None = None
    ) -> Response:
        """Answer a request for which there is no route, and count it.

        Args:
            request: The request.
            error: Why there is none.
            model: The format of the failure; None for a `Problem`.
        """
        headers = request.headers
        # The path of a caller is no label of metrics, which must not grow without limit.
        context = RequestContext("", new_request_id(headers.get(REQUEST_ID_HEADER)))
        REQUEST_ID.set(context.request_id)
        if self._tracer is not None:
            context.span = self._tracer.begin_request(request.method, headers)
        self._telemetry.record_response(context, error.status, error.kind, error.detail)
        return problem_response(error, context.request_id, model)

    def in_flight(self) -> list[RequestContext]:
        """Return the requests that are not answered yet, in the order in which they arrived."""
        return sorted(self._requests.values(), key=lambda context: context.started)

    def cancel_all(self) -> None:
        """Cancel the admitted requests; their callers get 503."""
        self._cancelled = True
        for task in self._requests:
            if task is not None:
                task.cancel()

    def _seconds(self, headers: Mapping[str, str], name: str) -> float | None:
        """Return the seconds in a header, at most the service's deadline; None without it."""
        asked = headers.get(name)
        if asked is None:
            return None
        try:
            seconds = float(asked)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise InvalidRequest(f"{name}: give seconds, above 0 (got {asked[:60]!r})")
        return min(seconds, self._deadline_s)

    def _problem(
        self, route: Route[Any], error: RewardFleetError, context: RequestContext
    ) -> Response:
        self._telemetry.record_response(context, error.status, error.kind, error.detail)
        return problem_response(error, context.request_id, route.failure_model)


def _count(header: str) -> int:
    """Return the number in a header, limited; 0 if it is not one. It never fails a request."""
    is_count = header.isascii() and header.isdigit() and len(header) <= 20
    return min(int(header), MAX_FALLBACK_REWARDS) if is_count else 0
