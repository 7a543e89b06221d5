"""The replicas of a service: load balancing, ejection, cool-down, and the queue of the client.

A request goes to the replica with the fewest unanswered items. Requests without capacity wait
here, in an O(n) queue: httpx's pool searches all waiting requests at each step, so it is never
given more requests than it has connections.

- A replica that cannot be reached, answers 503, or does not answer before the deadline is
  ejected, as is a replica whose judge fails several times in a row. It is probed (`/readyz`) at
  growing intervals, and readmitted when it answers. If all replicas are ejected, the one that
  failed least recently is used.
- A replica that has sent nothing for a second while a request waits is checked (`/readyz`), and
  gets no requests meanwhile. If it does not answer the check either, it is frozen or cut off: it
  is ejected, and its requests are sent to other replicas. As long as it answers checks, a request
  may take until its deadline. If no other replica is healthy, none is checked.
- A replica that answers 429 cools down for its `Retry-After`. Afterwards it gets half as many
  requests at once, and one more for each round of successes.
- No `Retry-After` rests a replica for more than 30 s.
"""

import asyncio
import base64
import math
from collections import deque
from collections.abc import AsyncIterable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial

import httpx

from rewardfleet.wire.backoff import backoff, backoff_with_jitter
from rewardfleet.wire.errors import BackendFailed, ErrorKind, RewardFleetError
from rewardfleet.wire.headers import REQUEST_ID_HEADER

from .responses import new_request_id, receive
from .timeouts import Timeout, timeout

#: Failed judgments in a row after which a replica is ejected.
_EJECT_AFTER = 5
#: Seconds of the first ejection, doubled by each further one without a success in between.
_EJECTION_SECONDS = 1.0
#: The longest ejection in seconds.
_MAX_EJECTION_SECONDS = 30.0
#: The longest time in seconds for which a `Retry-After` rests a replica.
_MAX_REST_SECONDS = 30.0
#: Seconds for which a replica may send nothing, while a request waits, before it is checked: a
#: tenth of a call's timeout within these limits.
_MIN_SILENCE_SECONDS, _MAX_SILENCE_SECONDS = 0.1, 1.0
#: Seconds that it then has to answer the check: a fifth of a call's timeout within these limits.
_MIN_CHECK_SECONDS, _MAX_CHECK_SECONDS = 0.25, 2.0
#: If a check ends so many seconds late, this process was busy, and the check shows nothing.
_BUSY_SECONDS = 0.25
#: The largest answer to a probe in bytes.
_MAX_PROBE_BYTES = 2**20
#: Seconds that a probe may take.
_PROBE_SECONDS = 5.0
#: The longest first wait before a retry in seconds, doubled by each further one.
_BACKOFF_SECONDS = 0.5
#: The longest of all waits before a retry in seconds.
_MAX_BACKOFF_SECONDS = 8.0


def retry_wait(nth: int) -> float:
    """Return the seconds to wait before retry `nth` (1, 2, …); see `backoff_with_jitter`."""
    return backoff_with_jitter(nth, _BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)


def rest_seconds(error: RewardFleetError) -> float:
    """Return the `Retry-After` of an error in seconds, at most `_MAX_REST_SECONDS`."""
    return min(error.retry_after or 0.0, _MAX_REST_SECONDS)


@dataclass(eq=False)
class Replica:
    """One base URL, its connections, and its health. Times are those of the loop's clock."""

    url: str
    #: Without a client of httpx, whose redirects, cookies and event hooks nothing here needs: they
    #: take 7% of the CPU time of a call.
    http: httpx.AsyncHTTPTransport
    headers: Mapping[str, str]  #: of all its requests
    limit: float  #: items that may be unanswered at once
    returns_ids: bool = False  #: whether it has answered with the `X-Request-Id` of a request
    in_flight: int = 0  #: items sent and not answered yet
    last_used: int = 0  #: the number of the last request that it got
    failures: int = 0  #: failed judgments since the last success
    consecutive_429s: int = 0  #: 429s since the last success
    cooldown_until: float = -math.inf
    ejected: bool = False
    ejections: int = 0  #: since the last success
    failed_at: float = -math.inf
    timer: asyncio.TimerHandle | None = None
    probe: asyncio.Task[None] | None = None
    #: the limits of the requests that wait for an answer; see `Replicas.watching`
    waiting: set[Timeout] = field(default_factory=set)
    asked_at: float | None = None  #: when the first request was sent since it last sent anything
    suspect: bool = False  #: whether it must answer a check before it gets other requests
    watch: asyncio.TimerHandle | None = None
    check: asyncio.Task[None] | None = None

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> httpx.Request:
        """Build a request to it. A user and a password in its URL become `Authorization`."""
        url = _parsed(self.url + path)
        more = {}
        if url.userinfo:
            user = f"{url.username}:{url.password}".encode()
            more["authorization"] = f"Basic {base64.b64encode(user).decode()}"
        return httpx.Request(
            method,
            url,
            headers={**self.headers, **headers, **more},
            content=content,
            extensions={"timeout": timeout.as_dict()},
        )


_parsed = lru_cache(maxsize=256)(httpx.URL)


@dataclass(eq=False)
class _Waiter:
    """A request that waits for capacity."""

    item_count: int
    avoid: Collection[str]
    #: The replica, once its items are counted in its `in_flight`.
    granted: asyncio.Future[Replica] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Replicas:
    """The replicas of one service, in one event loop.

    Args:
        max_concurrency, timeout_s: See `RewardFleet`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str],
        max_concurrency: int,
        timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_concurrency = max_concurrency
        connect = partial(
            httpx.AsyncHTTPTransport,
            limits=httpx.Limits(max_connections=max_concurrency + 2),  # and a probe and a check
            verify=httpx.create_ssl_context(trust_env=False),  # slow, so done once
            # A proxy from the environment is for external hosts, not for traffic within a fleet.
            trust_env=False,
        )
        # The size of a compressed response is not known before it is in memory.
        own = {"user-agent": f"python-httpx/{httpx.__version__}", "accept-encoding": "identity"}
        headers = {**headers, **own}
        self._replicas = [Replica(url, connect(), headers, max_concurrency) for url in urls]
        self._waiting: deque[_Waiter] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._requests = 0
        self._closed = False
        self._silence_s = min(max(timeout_s / 10, _MIN_SILENCE_SECONDS), _MAX_SILENCE_SECONDS)
        self._check_s = min(max(timeout_s / 5, _MIN_CHECK_SECONDS), _MAX_CHECK_SECONDS)

    async def acquire(self, item_count: int, *, avoid: Collection[str], at_front: bool) -> Replica:
        """Wait for capacity at a replica and take it; `release` gives it back.

        Args:
            avoid: URLs of replicas that are second choice, as they failed this request before.
            at_front: Put the request at the front of the queue, as it has waited before.
        """
        waiter = _Waiter(item_count, avoid)
        if at_front:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._dispatch()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._dispatch()  # smaller requests behind it may fit now
            else:
                self.release(waiter.granted.result(), item_count)
            raise

    @contextmanager
    def watching(self, replica: Replica, limit: Timeout) -> Iterator[None]:
        """Watch whether a replica answers while a request waits for it.

        If the replica stops answering, `limit`, in which the request waits, expires at once.
        """
        replica.waiting.add(limit)
        if replica.asked_at is None:
            replica.asked_at = self._loop.time()
        if replica.watch is None:
            self._watch_later(replica)
        try:
            yield
            if len(replica.waiting) == 1:
                replica.asked_at = None  # all requests are answered
        finally:
            replica.waiting.discard(limit)

    def heard(self, replica: Replica) -> None:
        """Record that a replica has sent something."""
        replica.asked_at = self._loop.time()
        if replica.suspect:
            replica.suspect = False
            self._dispatch()

    def release(self, replica: Replica, item_count: int) -> None:
        """Give back what `acquire` took."""
        replica.in_flight -= item_count
        self._dispatch()

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Return whether there is a healthy replica other than those to avoid."""
        now = self._loop.time()
        return any(
            replica.url not in avoid and not replica.ejected and replica.cooldown_until <= now
            for replica in self._replicas
        )

    def next_available_at(self) -> float:
        """Return when the first cool-down ends, by the loop's clock; in the past if one is free."""
        return min(
            (replica.cooldown_until for replica in self._replicas if not replica.ejected),
            default=-math.inf,
        )

    def succeeded(self, replica: Replica, item_count: int, *, started: float) -> None:
        """Record that a request that started at `started`, by the loop's clock, was answered."""
        if started < replica.failed_at:
            return  # it was sent before the failure, so it does not show that the failure is over
        replica.failures = replica.consecutive_429s = replica.ejections = 0
        replica.limit = min(self._max_concurrency, replica.limit + item_count / replica.limit)
        if replica.ejected:
            self._readmit(replica)

    def failed(self, replica: Replica, error: RewardFleetError, *, started: float) -> None:
        """Record the failure of a request that started at `started`, by the loop's clock."""
        if error.kind is ErrorKind.OVERLOADED:
            self._cool_down(replica, rest_seconds(error), started)
        elif started < replica.failed_at:
            pass  # it was sent before the last failure was known, so it adds nothing
        elif error.kind is ErrorKind.UNAVAILABLE:
            self.eject(replica, started=started, seconds=rest_seconds(error))
        elif error.is_foreign or error.kind in {ErrorKind.BACKEND_FAILED, ErrorKind.INTERNAL}:
            replica.failures += 1
            if replica.failures >= _EJECT_AFTER:
                self.eject(replica, started=started)

    def eject(self, replica: Replica, *, started: float, seconds: float = 0.0) -> None:
        """Stop using a replica until it answers a probe, which is sent in `seconds` or later."""
        if started < replica.failed_at:
            return
        replica.failed_at = self._loop.time()
        if not replica.ejected:
            self._eject(replica, seconds)

    async def aclose(self) -> None:
        """Close the connections and stop the probes."""
        self._closed = True
        for replica in self._replicas:
            for timer in (replica.timer, replica.watch):
                if timer is not None:
                    timer.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        requests = [task for each in self._replicas for task in (each.probe, each.check) if task]
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        for replica in self._replicas:
            await replica.http.aclose()

    def _dispatch(self) -> None:
        """Grant capacity to waiting requests, in order, while there is any."""
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.granted.done():
                replica = self._choose(waiter)
                if replica is None:
                    self._set_alarm()
                    return
                self._requests += 1
                replica.last_used = self._requests
                replica.in_flight += waiter.item_count
                waiter.granted.set_result(replica)
            self._waiting.popleft()

    def _choose(self, waiter: _Waiter) -> Replica | None:
        now = self._loop.time()
        count = waiter.item_count  # an idle replica accepts any number
        free = [
            each
            for each in self._replicas
            if not each.in_flight or each.in_flight + count <= each.limit
        ]
        if all(replica.ejected for replica in self._replicas):
            return min(free, key=lambda replica: replica.failed_at, default=None)
        return min(
            (each for each in free if not each.ejected and each.cooldown_until <= now),
            key=lambda each: (
                each.url in waiter.avoid,
                each.suspect,
                each.in_flight,
                each.last_used,
            ),
            default=None,
        )

    def _set_alarm(self) -> None:
        """Dispatch again when the first cool-down ends."""
        now = self._loop.time()
        ends = [each.cooldown_until for each in self._replicas if each.cooldown_until > now]
        if ends and self._alarm is None:
            self._alarm = self._loop.call_at(min(ends), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._dispatch()

    def _cool_down(self, replica: Replica, seconds: float, started: float) -> None:
        now = self._loop.time()
        if replica.cooldown_until <= now and started >= replica.failed_at:
            replica.limit = max(1.0, min(replica.limit, replica.in_flight) / 2)
            replica.failed_at = now
            replica.consecutive_429s += 1
        wait = seconds + retry_wait(max(replica.consecutive_429s, 1))
        until = now + min(wait, _MAX_REST_SECONDS)
        replica.cooldown_until = max(replica.cooldown_until, until)

    def _eject(self, replica: Replica, seconds: float) -> None:
        replica.ejected = True
        replica.ejections += 1
        pause = backoff(replica.ejections, _EJECTION_SECONDS, _MAX_EJECTION_SECONDS)
        pause = max(pause, seconds)
        if not self._closed:
            replica.timer = self._loop.call_later(pause, self._start_probe, replica)
        self._dispatch()  # if it was the last healthy one, ejected replicas are used now

    def _start_probe(self, replica: Replica) -> None:
        replica.probe = self._loop.create_task(self._probe(replica))

    async def _probe(self, replica: Replica) -> None:
        """Check whether an ejected replica is ready again, so that no user's request has to."""
        status = await self._readiness(replica, _PROBE_SECONDS)
        ready = status is not None and status < 500
        if not replica.ejected:
            return  # a request was answered meanwhile
        if ready:
            self._readmit(replica)
        else:
            self._eject(replica, 0.0)

    async def _readiness(self, replica: Replica, seconds: float) -> int | None:
        """Return the status of a replica's answer to `/readyz`; None if there is none in time."""
        headers = {REQUEST_ID_HEADER: new_request_id()}
        request = replica.request("GET", "/readyz", headers, httpx.Timeout(seconds))
        try:
            async with timeout(seconds):
                answer = await receive(replica.http, request, _MAX_PROBE_BYTES)
        except BackendFailed:
            return BackendFailed.status  # it answers, but not as a service does
        except (TimeoutError, httpx.RequestError):
            return None
        return answer.status_code

    def _watch_later(self, replica: Replica) -> None:
        """Look at a replica again when it may have been silent for too long."""
        if not self._closed:
            asked_at = self._loop.time() if replica.asked_at is None else replica.asked_at
            replica.watch = self._loop.call_at(asked_at + self._silence_s, self._watch, replica)

    def _watch(self, replica: Replica) -> None:
        replica.watch = None
        if replica.asked_at is None or replica.check is not None:
            return  # nothing waits, or the check that is under way goes on with it
        if self._loop.time() - replica.asked_at >= self._silence_s * 0.99:
            self._suspect(replica)
        if replica.check is None:
            if not self._has_other(replica):
                if not replica.waiting:
                    replica.asked_at = None
                    return
                replica.asked_at = self._loop.time()  # look again later
            self._watch_later(replica)

    def _has_other(self, replica: Replica) -> bool:
        return any(other is not replica and not other.ejected for other in self._replicas)

    def _suspect(self, replica: Replica) -> None:
        """Check a silent replica, if there is another one that its calls can be sent to."""
        if replica.check is None and self._has_other(replica):
            replica.suspect = True
            replica.check = self._loop.create_task(self._check(replica))

    async def _check(self, replica: Replica) -> None:
        """Check whether a replica still answers. If not, give its requests to others."""
        began = self._loop.time()
        try:
            status = await self._readiness(replica, self._check_s)
        finally:
            replica.check = None
        was_busy = self._loop.time() - began > self._check_s + _BUSY_SECONDS
        if status is None and replica.suspect and not was_busy:
            replica.suspect = False
            replica.asked_at = None
            self.eject(replica, started=self._loop.time())
            for limit in replica.waiting:
                if not limit.expired():
                    limit.reschedule(self._loop.time())
            return
        self.heard(replica)
        if status is not None and status >= 500:
            self.eject(replica, started=began)  # it finishes its requests, and gets no others
        if not replica.waiting:
            replica.asked_at = None
        elif replica.watch is None:
            self._watch_later(replica)

    def _readmit(self, replica: Replica) -> None:
        replica.ejected = False
        replica.failures = 0
        if replica.timer is not None:
            replica.timer.cancel()
        self._dispatch()
