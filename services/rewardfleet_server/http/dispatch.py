"""What happens to a request, in order:

authenticate → admit, or wait in line → read and decode the body → handler (→ engine) → response.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rewardfleet.wire.chat import ChatError
from rewardfleet.wire.errors import InvalidRequest, Overloaded, RewardFleetError, Unavailable
from rewardfleet.wire.headers import (
    CALL_TIMEOUT_HEADER,
    DISCARDED_HEADER,
    FAILED_ITEMS_HEADER,
    FALLBACK_REWARDS_HEADER,
    HELD_HEADER,
    MAX_FALLBACK_REWARDS,
    PREFIX_HEADER,
    REQUEST_ID_HEADER,
    RUN_STATE_HEADER,
    TIMEOUT_HEADER,
)
from rewardfleet.wire.waiting import RESERVED_SECONDS, Waits, waits_at
from rewardfleet_server.admission import Admission
from rewardfleet_server.engine import as_failure
from rewardfleet_server.observe.telemetry import REQUEST, RequestContext, Telemetry, new_request_id
from rewardfleet_server.observe.tracing import open_tracer
from rewardfleet_server.system.started import finish_by

from .auth import ApiKeys
from .body import BodyReader
from .guard import ClientDisconnected, guarded
from .problems import problem_response
from .routes import Route, encode

#: Bodies that are read only to be refused: so many at once, of so many bytes, in so many seconds.
_CONCURRENT_REFUSALS, _MAX_REFUSED_BYTES, _REFUSAL_SECONDS = 8, 4 * 2**20, 15.0


class Dispatcher:
    """Answers the requests of one service.

    Args:
        keys: The accepted API keys.
        admission: Limits the requests that are admitted.
        max_body_bytes: Limit on one body.
        telemetry: Counts requests. It knows their deadline; a caller may ask for an earlier one
            in `X-Request-Timeout`.
        run_state: Returns the id of the store of run state, if there is one.
    """

    def __init__(
        self,
        keys: ApiKeys,
        admission: Admission,
        max_body_bytes: int,
        telemetry: Telemetry,
        run_state: Callable[[], str | None],
    ) -> None:
        self._run_state = run_state
        self._keys = keys
        self._admission = admission
        self._bodies = BodyReader(max_body_bytes)
        self._telemetry = telemetry
        self._deadline_s = telemetry.deadline_s
        self._tracer = open_tracer(telemetry.service)
        self._requests: dict[asyncio.Task[Any] | None, RequestContext] = {}
        self._cancelled = False
        self._refusals = asyncio.Semaphore(_CONCURRENT_REFUSALS)

    async def handle(
        self, route: Route[Any], request: Request, parameters: Mapping[str, str]
    ) -> Response:
        """Answer one request. Every failure becomes a problem response.

        Args:
            route: The route of the request's path and method.
            request: The request.
            parameters: The parameters of its path.
        """
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.scope["headers"]
        }
        context = RequestContext(
            route.path, new_request_id(headers.get(REQUEST_ID_HEADER)), parameters=parameters
        )
        REQUEST.set(context)
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
            # Without a variable, which would keep the error, its frames and an upload alive.
            return self._problem(
                route,
                _for_its_client(route, as_failure(error, context, overdue=True), headers),
                context,
            )
        finally:
            del self._requests[task]
        self._telemetry.record_response(context, 200, None)
        own = {REQUEST_ID_HEADER: context.request_id, **self._of_context(context)}
        return Response(content, media_type="application/json", headers=own)

    async def _answer(
        self,
        route: Route[Any],
        request: Request,
        headers: Mapping[str, str],
        context: RequestContext,
    ) -> bytes:
        self._keys.check(headers.get("authorization"))
        reported = _number(headers.get(FALLBACK_REWARDS_HEADER, ""))
        context.fallback_rewards = min(reported, MAX_FALLBACK_REWARDS)
        waits = waits_at(route.path)
        if waits is not None and PREFIX_HEADER in headers:
            held_s = self._seconds(headers, HELD_HEADER)
            context.started -= min(held_s or 0.0, self._deadline_s)
        given_s = self._seconds(headers, TIMEOUT_HEADER)
        limit = self._deadline_s if waits is None else waits.answer_s or self._deadline_s
        context.timeout_s = min(given_s or limit, limit, self._deadline_s)
        # Which verdict a program gets must not depend on how long its request has waited.
        whole_s = given_s if waits is None else None
        whole_s = self._seconds(headers, CALL_TIMEOUT_HEADER) or whole_s
        context.call_timeout_s = whole_s or self._deadline_s
        deadline = context.deadline
        has_body = route.request_model is not None
        announced = self._bodies.announced_bytes(headers, route) if has_body else 0
        context.body_bytes = announced
        try:
            place = await self._admit(announced, waits, context)
        except (Overloaded, Unavailable) as error:
            if route.refuse is None or PREFIX_HEADER in headers:
                raise
            self._telemetry.record_failure(context, error.kind)
            return await self._refuse_in_full(route, request, headers, error)
        with place as resize:

            def sized(size: int) -> None:
                context.body_bytes = size
                resize(size)

            try:
                decoded = has_body and await finish_by(
                    deadline, self._bodies.read(request, headers, route, sized)
                )
            except InvalidRequest as error:
                if route.scores:
                    self._telemetry.record_failure(context, error.kind)
                raise
            context.stage = "response"
            response = await guarded(request, deadline, route.handler(decoded, context))
        return response if isinstance(response, bytes) else encode(response)

    async def _refuse_in_full(
        self,
        route: Route[Any],
        request: Request,
        headers: Mapping[str, str],
        error: RewardFleetError,
    ) -> bytes:
        """Return a refusal in the route's own format, for which the body must be known."""
        assert route.refuse is not None  # noqa: S101 - as the caller has checked

        def limit(size: int) -> None:
            if size > _MAX_REFUSED_BYTES:
                raise error

        deadline = asyncio.get_running_loop().time() + _REFUSAL_SECONDS
        try:
            async with asyncio.timeout_at(deadline), self._refusals:
                decoded = await self._bodies.read(request, headers, route, limit)
        except TimeoutError:
            raise error from None
        return encode(route.refuse(decoded, error))

    async def _admit(
        self, announced: int, waits: Waits | None, context: RequestContext
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return the place of a request, which may wait in line for it with its body unread."""
        if waits is None:
            return self._admission.admit(announced)
        context.is_patient, context.stage = True, "line"
        seconds = waits.in_line_s or max(self._deadline_s - RESERVED_SECONDS, 1.0)
        until = context.started + min(seconds, context.timeout_s or seconds)
        place = await self._admission.wait_in_line(announced, until)
        context.stage = "body"
        return place

    def refuse(
        self, request: Request, error: RewardFleetError, model: type[ChatError] | None = None
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
        REQUEST.set(context)
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

    async def aclose(self) -> None:
        """End what decodes bodies, and export the last spans."""
        self._bodies.close()
        if self._tracer is not None:
            await self._tracer.aclose()

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
        response = problem_response(error, context.request_id, route.failure_model)
        response.headers.update(self._of_context(context))
        return response

    def _of_context(self, context: RequestContext) -> dict[str, str]:
        """Return headers: the store of run state, what was discarded of it, and failed items."""
        given = {RUN_STATE_HEADER: self._run_state(), DISCARDED_HEADER: context.discarded_from}
        if context.failed_here * 2 >= context.items > 0:
            given[FAILED_ITEMS_HEADER] = context.failed_here
        return {name: str(value) for name, value in given.items() if value is not None}


def _for_its_client(
    route: Route[Any], error: RewardFleetError, headers: Mapping[str, str]
) -> RewardFleetError:
    """Return a failure that may pass as the one on which the client of its route repeats.

    A proxy needs the failure itself: it tries other replicas, and does this when all have failed.
    """
    waits = waits_at(route.path)
    is_final = not error.retryable or PREFIX_HEADER in headers
    if waits is None or waits.repeats_on is None or is_final:
        return error
    return waits.repeats_on(f"{error.detail}; send it again", retry_after=error.retry_after)


def _number(header: str) -> int:
    """Return the whole number in a header; 0 if it is not one. It never fails a request."""
    is_number = header.isascii() and header.isdigit() and len(header) <= 20
    return int(header) if is_number else 0
