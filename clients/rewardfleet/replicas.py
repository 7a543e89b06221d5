"""The replicas of a service: load balancing, ejection, cool-down, and the queue of the client.

A request goes to the replica with the fewest unanswered items. Requests without capacity wait
here, in an O(n) queue: httpx's pool searches all waiting requests at each step, so it is never
given more requests than it has connections.

- A replica that cannot be reached, answers 503, or does not answer before the deadline is
  ejected, as is a replica whose judge fails several times in a row. It is probed (`/readyz`) at
  growing intervals, and readmitted when it answers. If all replicas are ejected, the one that
  failed least recently is used.
- A replica that answers 429 cools down for its `Retry-After`. Afterwards it gets half as many
  requests at once, and one more for each round of successes.
"""

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from .wire.backoff import backoff, backoff_with_jitter
from .wire.errors import ErrorKind, RewardFleetError

#: Failed judgments in a row after which a replica is ejected.
EJECT_AFTER = 5
#: Seconds of the first ejection, doubled by each further one without a success in between.
EJECTION_SECONDS = 1.0
#: The longest ejection in seconds, unless a `Retry-After` is longer.
MAX_EJECTION_SECONDS = 30.0
#: Seconds that a probe may take.
PROBE_SECONDS = 5.0
#: The longest first wait before a retry in seconds, doubled by each further one.
BACKOFF_SECONDS = 0.5
#: The longest of all waits before a retry in seconds.
MAX_BACKOFF_SECONDS = 8.0


def retry_wait(nth: int) -> float:
    """Return the seconds to wait before retry `nth` (1, 2, …); see `backoff_with_jitter`."""
    return backoff_with_jitter(nth, BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)


@dataclass(eq=False)
class Replica:
    """One base URL, its connections, and its health. Times are those of the loop's clock."""

    url: str
    http: httpx.AsyncClient
    limit: float  #: items that may be unanswered at once
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

    def has_capacity(self, item_count: int) -> bool:
        """Return whether so many more items fit; an idle replica accepts any number."""
        return not self.in_flight or self.in_flight + item_count <= self.limit


@dataclass(eq=False)
class _Waiter:
    """A request that waits for capacity.

    Attributes:
        granted: The replica, once its items are counted in its `in_flight`.
    """

    item_count: int
    avoid: Collection[str]
    granted: asyncio.Future[Replica] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Replicas:
    """The replicas of one service, in one event loop.

    Args:
        urls: Base URLs.
        headers: Sent with each request.
        max_concurrency: The most items sent to a replica and not answered yet, 1 or more.
    """

    def __init__(
        self, urls: Sequence[str], *, headers: Mapping[str, str], max_concurrency: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_concurrency = max_concurrency
        context = httpx.create_ssl_context(trust_env=False)  # slow, so done once
        self._replicas = [
            Replica(url, _connections(headers, max_concurrency, context), max_concurrency)
            for url in urls
        ]
        self._waiting: deque[_Waiter] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._requests = 0
        self._closed = False

    async def acquire(self, item_count: int, *, avoid: Collection[str], at_front: bool) -> Replica:
        """Wait for capacity at a replica and take it; `release` gives it back.

        Args:
            item_count: The number of items of the request, 1 or more.
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
            self._cool_down(replica, error.retry_after or 0.0, started)
        elif started < replica.failed_at:
            pass  # it was sent before the last failure was known, so it adds nothing
        elif error.kind is ErrorKind.UNAVAILABLE:
            self.eject(replica, started=started, seconds=error.retry_after or 0.0)
        elif error.kind in {ErrorKind.BACKEND_FAILED, ErrorKind.INTERNAL}:
            replica.failures += 1
            if replica.failures >= EJECT_AFTER:
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
            if replica.timer is not None:
                replica.timer.cancel()
            if replica.probe is not None:
                replica.probe.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
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
        free = [replica for replica in self._replicas if replica.has_capacity(waiter.item_count)]
        if all(replica.ejected for replica in self._replicas):
            return min(free, key=lambda replica: replica.failed_at, default=None)
        return min(
            (each for each in free if not each.ejected and each.cooldown_until <= now),
            key=lambda replica: (replica.url in waiter.avoid, replica.in_flight, replica.last_used),
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
        until = now + seconds + retry_wait(max(replica.consecutive_429s, 1))
        replica.cooldown_until = max(replica.cooldown_until, until)

    def _eject(self, replica: Replica, seconds: float) -> None:
        replica.ejected = True
        replica.ejections += 1
        pause = backoff(replica.ejections, EJECTION_SECONDS, MAX_EJECTION_SECONDS)
        pause = max(pause, seconds)
        if not self._closed:
            replica.timer = self._loop.call_later(pause, self._start_probe, replica)
        self._dispatch()  # if it was the last healthy one, ejected replicas are used now

    def _start_probe(self, replica: Replica) -> None:
        replica.probe = self._loop.create_task(self._probe(replica))

    async def _probe(self, replica: Replica) -> None:
        """Check whether an ejected replica is ready again, so that no user's request has to."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await replica.http.get(f"{replica.url}/readyz", timeout=PROBE_SECONDS)
            ready = answer.status_code < 500
        except (TimeoutError, httpx.RequestError):
            ready = False
        if not replica.ejected:
            return  # a request was answered meanwhile
        if ready:
            self._readmit(replica)
        else:
            self._eject(replica, 0.0)

    def _readmit(self, replica: Replica) -> None:
        replica.ejected = False
        replica.failures = 0
        if replica.timer is not None:
            replica.timer.cancel()
        self._dispatch()


def _connections(
    headers: Mapping[str, str], max_concurrency: int, context: ssl.SSLContext
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers=headers,
        limits=httpx.Limits(max_connections=max_concurrency + 1),  # and a probe
        verify=context,
        # A proxy from the environment is for external hosts, not for traffic within a fleet.
        trust_env=False,
    )
