"""What happens to a request, in order:

authenticate → admit, or wait in line → read and decode the body → handler (→ engine) → response.
"""

import asyncio
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rewardfleet.wire import headers as wire
from rewardfleet.wire.chat import ChatError
from rewardfleet.wire.errors import InvalidRequest, Overloaded, RewardFleetError, Unavailable
from rewardfleet.wire.in_flight import MAX_LISTED, InFlight, InFlightSample
from rewardfleet.wire.waiting import RESERVED_SECONDS, Waits, waits_at
from rewardfleet_server.admission import Admission, Place
from rewardfleet_server.engine import as_failure
from rewardfleet_server.observe.telemetry import REQUEST, RequestContext, Telemetry, new_request_id
from rewardfleet_server.observe.tracing import ItemSpan, open_tracer
from rewardfleet_server.system.started import ClientDisconnected, finish_by, guarded

from .auth import ApiKeys
from .body import BodyReader
from .problems import problem_response
from .routes import Route, encode

#: Bodies that are read only to be refused: so many at once, of so many bytes, in so many seconds.
_CONCURRENT_REFUSALS, _MAX_REFUSED_BYTES, _REFUSAL_SECONDS = 8, 4 * 2**20, 15.0
#: A sample may share another one's computation, which may wait for a third one's check of tests.
_MAX_LEADERS = 2


class Dispatcher:
    """Answers the requests of one service.

    `telemetry` knows their deadline; a caller may ask for an earlier one in `X-Request-Timeout`.
    `run_state` returns the id of the store of run state, if there is one.
    """

    def __init__(
        self,
        keys: ApiKeys,
        admission: Admission,
        max_body_bytes: int,
        telemetry: Telemetry,
        run_state: Callable[[], str | None],
    ) -> None:
        self._run_state, self._keys, self._admission = run_state, keys, admission
        self._bodies = BodyReader(max_body_bytes)
        self._telemetry, self._deadline_s = telemetry, telemetry.deadline_s
        self._tracer = open_tracer(telemetry.service)
        self._requests: dict[asyncio.Task[Any] | None, RequestContext] = {}
        self._cancelled = False
        self._refusals = asyncio.Semaphore(_CONCURRENT_REFUSALS)

    async def handle(
        self, route: Route[Any], request: Request, parameters: Mapping[str, str]
    ) -> Response:
        """Answer a request for a route, with the parameters of its path.

        Every failure becomes a problem response.
        """
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.scope["headers"]
        }
        context = RequestContext(
            route.path, new_request_id(headers.get(wire.REQUEST_ID_HEADER)), parameters=parameters
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
        own = {wire.REQUEST_ID_HEADER: context.request_id, **self._of_context(context)}
        return Response(content, media_type="application/json", headers=own)

    async def _answer(
        self,
        route: Route[Any],
        request: Request,
        headers: Mapping[str, str],
        context: RequestContext,
    ) -> bytes:
        self._keys.check(headers.get("authorization"))
        reported = _number(headers.get(wire.FALLBACK_REWARDS_HEADER, ""))
        context.fallback_rewards = min(reported, wire.MAX_FALLBACK_REWARDS)
        waits = waits_at(route.path)
        if waits is not None and wire.PREFIX_HEADER in headers:
            held_s = self._seconds(headers, wire.HELD_HEADER)
            context.started -= min(held_s or 0.0, self._deadline_s)
        given_s = self._seconds(headers, wire.TIMEOUT_HEADER)
        limit = self._deadline_s if waits is None else waits.answer_s or self._deadline_s
        context.timeout_s = min(given_s or limit, limit, self._deadline_s)
        # Which verdict a program gets must not depend on how long its request has waited.
        whole_s = given_s if waits is None else None
        whole_s = self._seconds(headers, wire.CALL_TIMEOUT_HEADER) or whole_s
        context.call_timeout_s = whole_s or self._deadline_s
        deadline = context.deadline
        has_body = route.request_model is not None
        announced = self._bodies.announced_bytes(headers, route) if has_body else 0
        context.body_bytes = announced
        try:
            place = await self._admit(announced, waits, context)
        except (Overloaded, Unavailable) as error:
            if route.refuse is None or wire.PREFIX_HEADER in headers:
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
            response = await guarded(request.receive, deadline, route.handler(decoded, context))
        return response if isinstance(response, bytes) else encode(response)

    async def _refuse_in_full(
        self,
        route: Route[Any],
        request: Request,
        headers: Mapping[str, str],
        error: RewardFleetError,
    ) -> bytes:
        """Return a refusal in the route's own format, for which the body must be known."""

        def limit(size: int) -> None:
            if size > _MAX_REFUSED_BYTES:
                raise error

        deadline = asyncio.get_running_loop().time() + _REFUSAL_SECONDS
        try:
            async with asyncio.timeout_at(deadline), self._refusals:
                decoded = await self._bodies.read(request, headers, route, limit)
        except TimeoutError:
            raise error from None
        assert route.refuse is not None  # noqa: S101 - as the caller has checked
        return encode(route.refuse(decoded, error))

    async def _admit(self, announced: int, waits: Waits | None, context: RequestContext) -> Place:
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
        """Answer a request for which there is no route, in the format of its path, and count it."""
        headers = request.headers
        # The path of a caller is no label of metrics, which must not grow without limit.
        context = RequestContext("", new_request_id(headers.get(wire.REQUEST_ID_HEADER)))
        REQUEST.set(context)
        if self._tracer is not None:
            context.span = self._tracer.begin_request(request.method, headers)
        self._telemetry.record_response(context, error.status, error.kind, error.detail)
        return problem_response(error, context.request_id, model)

    def in_flight(self) -> InFlight:
        """Return the samples of requests that are not answered yet, the oldest first."""
        requests = sorted(self._requests.values(), key=lambda context: context.started)
        return list_samples(self._telemetry.service, requests)

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
        with suppress(ValueError):
            if 0 < (seconds := float(asked)) < math.inf:
                return min(seconds, self._deadline_s)
        raise InvalidRequest(f"{name}: give seconds, above 0 (got {asked[:60]!r})")

    def _problem(
        self, route: Route[Any], error: RewardFleetError, context: RequestContext
    ) -> Response:
        self._telemetry.record_response(context, error.status, error.kind, error.detail)
        response = problem_response(error, context.request_id, route.failure_model)
        response.headers.update(self._of_context(context))
        return response

    def _of_context(self, context: RequestContext) -> dict[str, str]:
        """Return headers: the store of run state, what was discarded of it, and failed items."""
        given = {
            wire.RUN_STATE_HEADER: self._run_state(),
            wire.DISCARDED_HEADER: context.discarded_from,
        }
        if context.failed_here * 2 >= context.items > 0:
            given[wire.FAILED_ITEMS_HEADER] = context.failed_here
        return {name: str(value) for name, value in given.items() if value is not None}


def _for_its_client(
    route: Route[Any], error: RewardFleetError, headers: Mapping[str, str]
) -> RewardFleetError:
    """Return a failure that may pass as the one on which the client of its route repeats.

    A proxy needs the failure itself: it tries other replicas, and does this when all have failed.
    """
    waits = waits_at(route.path)
    is_final = not error.retryable or wire.PREFIX_HEADER in headers
    if waits is None or waits.repeats_on is None or is_final:
        return error
    return waits.repeats_on(f"{error.detail}; send it again", retry_after=error.retry_after)


def _number(header: str) -> int:
    """Return the whole number in a header; 0 if it is not one. It never fails a request."""
    is_number = header.isascii() and header.isdigit() and len(header) <= 20
    return int(header) if is_number else 0


def list_samples(service: str, requests: Iterable[RequestContext]) -> InFlight:
    """Return the samples of requests, which are in the order in which they arrived."""
    now = time.monotonic()
    total = 0
    samples: list[InFlightSample] = []
    for request in requests:
        for sample in request.samples or (ItemSpan(stage=request.stage, since=request.started),):
            total += sample.items
            if len(samples) == MAX_LISTED:
                continue
            working = sample
            for _ in range(_MAX_LEADERS):
                working = working.leader or working
            described = InFlightSample(
                service=service,
                replica=socket.gethostname(),
                request_id=request.request_id,
                path=request.path,
                stage=working.stage,
                backend=sample.backend,
                items=sample.items,
                age_s=round(now - request.started, 3),
                stage_s=round(now - working.since, 3),
                remaining_s=None if request.deadline is None else round(request.deadline - now, 3),
            )
            samples.append(described)
    return InFlight(total=total, samples=samples)
