"""The gateway: one address for all services, `/{service}/…`.

A request goes to the ready replica with the fewest requests in progress. Its body is passed on as
it arrives and is never parsed. If a replica cannot be reached, fails before it responds, or answers
429 or 503, the request is sent to another one: all requests of the services are idempotent.
While no replica is ready, since one restarts, requests wait in line; those of clients that cannot
repeat them also wait for capacity. A replica whose answers are failures is avoided.

`GET /inflight`, and `/{service}/inflight`, are answered by all replicas together. `GET /metrics`
has what the gateway itself has answered; services count their answers.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import prometheus_client as prometheus
from pydantic import ValidationError

from rewardfleet import __version__
from rewardfleet.wire.errors import (
    BackendFailed,
    NotFound,
    Overloaded,
    RewardFleetError,
    Unauthorized,
    Unavailable,
)
from rewardfleet.wire.headers import GATEWAY, REQUEST_ID_HEADER, SERVICE_HEADER
from rewardfleet.wire.in_flight import InFlight, merged
from rewardfleet.wire.run_state import own_run_states
from rewardfleet.wire.waiting import waits_at
from rewardfleet_server.admission import MAX_WAITING
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.openenv import Message, Receive, Send
from rewardfleet_server.http.problems import page_response, problem_response, wrong_method
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.observe.telemetry import new_request_id
from rewardfleet_server.serve import raise_descriptor_limit
from rewardfleet_server.system.listener import url_of

from . import proxy, timeouts
from .line import MAX_REQUESTS, Line, most_waiting
from .proxy import ProxiedRequest, Refusal, UpstreamFailed
from .replicas import Fleet, Replica, follow, usable

log = logging.getLogger(__name__)

#: What the gateway answers itself, so that no service can have such a prefix.
PAGES = ("", "healthz", "readyz", "inflight", "metrics")
#: Replicas for which `rewardfleet gateway` keeps open files free.
_REPLICAS = 64
#: A request that so many replicas did not survive is not sent to a third one.
_MAX_LOST = 2
#: The most bytes of a replica's samples in flight, and the time to wait for them.
_MAX_IN_FLIGHT_BYTES, _IN_FLIGHT_TIME = 2 * 2**20, aiohttp.ClientTimeout(total=2)
_TOO_LARGE = "a replica failed, and the body is too large to be stored; send it again"
#: Why a replica does not report its samples in flight without a key, or with another one.
_NO_KEY = "it requires an API key"
_WRONG_KEY = "it does not accept the API key"


class Gateway:
    """The ASGI application of the gateway. It does not check API keys: services do.

    Whoever owns the fleet sets `is_ready` of replicas; the gateway unsets it when one cannot be
    reached.
    """

    _upstream: proxy.Upstream  # while it serves

    def __init__(
        self, fleet: Fleet, hosts: AllowedHosts, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._fleet, self._hosts, self._max_waiting = fleet, hosts, max_waiting
        self._lines = {name: Line(replicas) for name, replicas in fleet.items()}
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        # By service, as services count by route. No status: the answer is that of a replica.
        self._answered = prometheus.Counter(
            "rewardfleet_requests_total",
            "Requests by service, and the status and kind of failures of the gateway itself.",
            ("service", "route", "status", "kind"),
            registry=self._registry,
        )
        waiting = prometheus.Gauge(
            "rewardfleet_waiting_requests",
            "Requests that wait in line at the gateway, by service.",
            ("service", "route"),
            registry=self._registry,
        )
        for name, line in self._lines.items():
            waiting.labels(GATEWAY, f"/{name}").set_function(partial(len, line.turns))
        self._in_progress = 0  # without those that are in line, or may be
        self._turn = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with proxy.Upstream(self._lines.values()) as self._upstream:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        path = scope["raw_path"][1:].decode("ascii")
        service = name if (name := path.partition("/")[0]) in self._fleet else ""
        try:
            await self._answer(scope, receive, send, service, path)
        except proxy.CallerDisconnected:
            pass
        except RewardFleetError as error:
            status = str(error.status)
            self._answered.labels(GATEWAY, f"/{service}", status, error.kind).inc()
            response = problem_response(error, _request_id(scope))
            response.headers[SERVICE_HEADER] = GATEWAY
            await response(scope, receive, send)
        else:
            self._answered.labels(GATEWAY, f"/{service}", "", "").inc()

    async def _answer(
        self, scope: Message, receive: Receive, send: Send, service: str, path: str
    ) -> None:
        self._hosts.check(scope["headers"])
        if path in PAGES or (service and path == f"{service}/inflight"):
            if scope["method"] not in {"GET", "HEAD"}:
                raise wrong_method("/" + path, scope["method"], ["GET"])
            response = page_response(await self._page(path, service, scope))
            response.headers[SERVICE_HEADER] = GATEWAY
            response.headers[REQUEST_ID_HEADER] = _request_id(scope)
            await response(scope, receive, send)
            return
        if not service:
            services = ", ".join(f"/{each}" for each in self._fleet)
            raise NotFound(f"no service at {'/' + path[:99]!r}; the services are at {services}")
        waits = waits_at(path[len(service) :] or "/")
        request = ProxiedRequest(scope, receive, service, self._upstream, waits)
        await self._forward(service, request, send)

    async def _page(self, path: str, service: str, scope: Message) -> bytes | dict[str, Any]:
        """Return what the gateway knows itself."""
        match path:
            case "":
                return self._index()
            case "readyz":
                reported = self._reported()
                missing = [name for name, some in reported if not any(r.is_ready for r in some)]
                if missing:
                    reason = f"no replica is ready: {', '.join(missing)}"
                    raise Unavailable(reason, retry_after=1)
                return {"status": "ready"}
            case "metrics":
                return prometheus.generate_latest(self._registry)
            case "healthz":
                return {"status": "ok"}
        return await self._in_flight(service, scope)

    def _index(self) -> dict[str, Any]:
        shown = ("url", "is_ready", "outstanding", "restarts", "last_failure")
        services = {}
        for name, replicas in self._reported():
            described = [{key: getattr(each, key) for key in shown} for each in replicas]
            services[name] = {"url": f"/{name}", "replicas": described}
        return {"service": GATEWAY, "version": __version__, "services": services}

    def _reported(self) -> list[tuple[str, Sequence[Replica]]]:
        items = list(self._fleet.items())
        # One that has never had a replica may not be deployed, as `vlm` without GPUs.
        return [each for each in items if each[1]] or items

    async def _in_flight(self, service: str, scope: Message) -> dict[str, Any]:
        """Return samples in flight of one service, or all; Unauthorized if none takes the key."""
        key = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        answers: list[InFlight] = []
        failures: dict[str, str] = {}
        accepting: set[str] = set()  # services that accept the key

        async def ask(name: str, url: str) -> None:
            try:
                answers.append(await self._in_flight_at(url, key))
                accepting.add(name)
            except UpstreamFailed as error:
                failures[url] = str(error)

        asked = [service] if service else list(self._fleet)
        await asyncio.gather(*(ask(name, each.url) for name in asked for each in self._fleet[name]))
        refusal = _WRONG_KEY if key else _NO_KEY
        if failures and set(failures.values()) == {refusal}:
            raise Unauthorized(f"{refusal}: `Authorization: Bearer <key>`")
        # Of a service that has not accepted the key, it shows what was sent with the same one.
        own = key.encode("latin-1")
        answers += [
            self._lines[name].in_flight(None if name in accepting else own) for name in asked
        ]
        return merged(answers, failures).model_dump()

    async def _in_flight_at(self, url: str, key: str) -> InFlight:
        """Return a replica's samples in flight, which name it; UpstreamFailed if it is silent."""
        headers = {"authorization": key} if key else {}
        try:
            async with self._upstream.session.get(
                f"{url}/inflight", headers=headers, timeout=_IN_FLIGHT_TIME
            ) as response:
                body, status = await proxy.read_all(response, _MAX_IN_FLIGHT_BYTES), response.status
            if status == Unauthorized.status:
                raise UpstreamFailed(_WRONG_KEY if key else _NO_KEY)
            answer = await asyncio.to_thread(InFlight.model_validate_json, body)
        except ValidationError:
            reason = f"it answered HTTP {status}, not its samples in flight"
            raise UpstreamFailed(reason) from None
        except TimeoutError:
            raise UpstreamFailed(f"no answer within {_IN_FLIGHT_TIME.total:g} s") from None
        except aiohttp.ClientError as error:
            raise proxy.failure_of(error) from None
        for sample in answer.samples:
            sample.replica = url
        return answer

    async def _forward(self, service: str, request: ProxiedRequest, send: Send) -> None:
        """Count a request while it is answered; raise what its client repeats if that is possible.

        Raises:
            Overloaded: There are too many.
            Conflict: The replicas have run state of their own.
        """
        is_counted = request.waits is None
        try:
            self._in_progress += is_counted
            if is_counted and self._in_progress > MAX_REQUESTS:
                reason = f"the gateway has {MAX_REQUESTS} requests in progress"
                raise Overloaded(reason, retry_after=1)
            # Also of one that is down: another store does not have what it has counted.
            stores = {each.url: each.run_state for each in self._fleet[service]}
            if problem := own_run_states(service, stores):
                raise problem
            await self._try_replicas(service, request, send)
        except RewardFleetError as error:
            waits = request.waits
            if waits is None or waits.repeats_on is None or not error.retryable:
                raise
            raise waits.repeats_on(error.detail, retry_after=error.retry_after) from error
        finally:
            self._in_progress -= is_counted
            request.body.end()

    async def _try_replicas(self, service: str, request: ProxiedRequest, send: Send) -> None:
        """Send a request to one replica after another, until one answers other than 429 or 503.

        While there is none that could, it waits in line, and then begins again.
        """
        tried: set[Replica] = set()
        refusals: list[Refusal] = []
        lost, has_waited = 0, False
        while not request.body.is_gone:
            replica = self._choose(service, tried, request)
            if replica is None:
                if not await self._wait_in_line(service, request, refusals, at_front=has_waited):
                    break
                has_waited = True
                tried.clear()
                refusals.clear()
                continue
            if not request.body.can_be_sent:
                # 0 s: another replica is free. A 429 would make the client pause for all.
                raise Unavailable(_TOO_LARGE, retry_after=0)
            tried.add(replica)
            try:
                refusal = await self._send_to(replica, request, send)
            except UpstreamFailed as error:
                lost += error.was_reached
                if replica.is_ready:  # else it is known already
                    log.warning("%s at %s failed a request: %s", service, replica.url, error)
                replica.is_ready = False
                replica.last_failure = f"a request failed: {error}"
                if lost == _MAX_LOST:
                    reason = f"{lost} replicas of {service} did not survive it"
                    raise BackendFailed(reason) from None
                if error.was_reached and not request.body.can_be_sent:
                    raise BackendFailed(_TOO_LARGE, retry_after=0) from None
                request.is_patient |= not request.is_page
                # Of what else has ended, e.g. all replicas of a machine, is known then.
                await asyncio.sleep(timeouts.LOOK_SECONDS if error.was_reached else 0)
                continue
            if refusal is None:
                return
            refusals.append(refusal)
            if refusal.status == Overloaded.status or request.waits is not None:
                most = timeouts.MAX_COOLDOWN_SECONDS if refusal.status == Overloaded.status else 1.0
                seconds = max(refusal.retry_after, timeouts.LOOK_SECONDS)
                replica.cooling_until = time.monotonic() + min(seconds, most)
        if request.body.is_gone:
            raise proxy.CallerDisconnected
        if refusals and request.waits is None:
            refusal = min(refusals, key=lambda each: (each.status, each.retry_after))
            head = {"status": refusal.status, "headers": refusal.headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": refusal.body})
            return
        raise self._unavailable(service, tried)

    async def _send_to(
        self, replica: Replica, request: ProxiedRequest, send: Send
    ) -> Refusal | None:
        replica.outstanding += 1
        try:
            return await request.send_to(replica, send)
        finally:
            replica.outstanding -= 1
            self._lines[replica.service].advance()

    async def _wait_in_line(
        self,
        service: str,
        request: ProxiedRequest,
        refusals: list[Refusal],
        *,
        at_front: bool,
    ) -> bool:
        """Return whether a request should be tried again, after it has waited for its turn."""
        line = self._lines[service]
        if line.has_opened and not any(each.is_ready for each in self._fleet[service]):
            request.is_patient |= not request.is_page
        is_answer = request.waits is None and any(each.status == 503 for each in refusals)
        if is_answer or line.is_over or not (request.is_patient and request.body.can_be_sent):
            return False
        if sum(len(each.turns) for each in self._lines.values()) >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} requests wait in line already", retry_after=1)
        if request.is_small:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(request.line_until):
                    await request.body.read()
        self._in_progress -= request.waits is None
        try:
            return await line.wait(request, at_front=at_front)
        finally:
            self._in_progress += request.waits is None

    def _choose(self, service: str, tried: set[Replica], request: ProxiedRequest) -> Replica | None:
        """Return a replica that may be sent a request; of equally busy ones, each in turn."""
        replicas, now = usable(self._fleet[service]), time.monotonic()
        self._turn += 1
        first = self._turn % max(len(replicas), 1)
        candidates = (
            each
            for each in (*replicas[first:], *replicas[:first])
            # Pages and health checks are answered at capacity as well.
            if each not in tried
            and (each.cooling_until <= now or request.is_read)
            and (not request.is_patient or Line.accepts(each))
        )
        return min(candidates, key=lambda each: each.outstanding, default=None)

    def _unavailable(self, service: str, tried: set[Replica]) -> RewardFleetError:
        """Return why no replica answered a request."""
        now = time.monotonic()
        pauses = [each.cooling_until - now for each in self._fleet[service] if each.is_ready]
        if pauses and not tried and min(pauses) > 0:
            reason = f"all replicas of {service} are at capacity"
            return Overloaded(reason, retry_after=round(min(pauses), 3))
        asked = tried or self._fleet[service]
        failures = "; ".join(each.last_failure for each in asked if each.last_failure)
        reason = f"no replica of {service} is ready{failures and ': '}{failures}"
        return Unavailable(reason, retry_after=1)


def _request_id(scope: Message) -> str:
    given = dict(scope["headers"]).get(REQUEST_ID_HEADER.encode(), b"")
    return new_request_id(given.decode("latin-1"))


def run_gateway(
    listener: socket.socket, hosts: AllowedHosts, services: Mapping[str, Sequence[str]]
) -> int:
    """Serve the replicas at the base URLs of services, by name; return the exit status."""
    fleet: dict[str, list[Replica]] = {name: [] for name in services}
    max_waiting = most_waiting(raise_descriptor_limit(), _REPLICAS)
    server = GracefulServer(Gateway(fleet, hosts, max_waiting=max_waiting))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            following = [
                group.create_task(follow(name, urls, fleet[name]))
                for name, urls in services.items()
            ]
            log.info("the gateway of %s listens on %s", ", ".join(fleet), url_of(listener))
            await server.serve([listener])
            for each in following:
                each.cancel()

    run_on_fast_loop(run())
    return server.status
