"""The replicas of a service: who gets the next request, who is left alone for a while, who waits.

A request takes a place at the replica with the least in flight. What finds no place waits here,
in order: httpx's pool searches all that wait at each step, so it is never given more requests
than it has connections.

- A replica that cannot be reached, answers 503, or keeps silent past its deadline is ejected,
  as is one whose judge fails several times in a row. It is asked for `/readyz` later, and later
  again, and comes back when it answers. Where all are ejected, the one that failed least
  recently is used.
- A replica that answers 429 rests for as long as it asked for, and gets fewer requests at once
  afterwards: half as many, and one more for each round of successes.
"""

import asyncio
import math
import random
import ssl
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from .wire.errors import ErrorKind, RewardFleetError

#: Failed judgments in a row after which a replica is taken for sick.
EJECT_AFTER = 5
#: Seconds of a first ejection, doubled by each one that follows without a success between.
EJECTION_SECONDS = 1.0
MAX_EJECTION_SECONDS = 30.0
#: Seconds for the answer to a probe.
PROBE_SECONDS = 5.0
#: Seconds of the first back-off at most, doubled by each that follows.
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 8.0


def backoff(nth: int) -> float:
    """Seconds to wait before the `nth` try again (1, 2, …): exponential, with full jitter.

    Source: Marc Brooker, Exponential Backoff And Jitter, AWS Architecture Blog (2015).
    """
    longest: float = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2 ** min(nth - 1, 10))
    return random.uniform(0, longest)  # noqa: S311 - spreads load, guards no secret


@dataclass(eq=False)
class Replica:
    """One base URL, its connections, and what is known of its health. Times are the loop's."""

    url: str
    http: httpx.AsyncClient
    limit: float  #: samples that it may have in flight
    in_flight: int = 0  #: samples
    chosen: int = 0  #: the number of the request that it got last
    failures: int = 0  #: failed judgments since the last success
    consecutive_429s: int = 0  #: 429s since the last success
    cooldown_until: float = -math.inf
    ejected: bool = False
    ejections: int = 0  #: since the last success
    failed_at: float = -math.inf
    timer: asyncio.TimerHandle | None = None
    probe: asyncio.Task[None] | None = None

    def has_room(self, samples: int) -> bool:
        return not self.in_flight or self.in_flight + samples <= self.limit


@dataclass(eq=False)
class _Waiter:
    samples: int
    avoid: Collection[str]
    place: asyncio.Future[Replica] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Replicas:
    """The replicas of one service, as one event loop sees them.

    Args:
        urls: Base URLs.
        headers: Sent with each request.
        max_concurrency: Samples in flight at a replica at once.
    """

    def __init__(
        self, urls: Sequence[str], *, headers: Mapping[str, str], max_concurrency: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_concurrency = max_concurrency
        context = httpx.create_ssl_context(trust_env=False)  # slow to make, so made once
        self._replicas = [
            Replica(url, _connections(headers, max_concurrency, context), max_concurrency)
            for url in urls
        ]
        self._waiting: deque[_Waiter] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._requests = 0
        self._closed = False

    async def acquire(self, samples: int, *, avoid: Collection[str], first: bool) -> Replica:
        """Take a place for a request of so many samples; `release` gives it back.

        Args:
            samples: How many places it takes.
            avoid: URLs of replicas that are second choice, as they failed this request before.
            first: It has waited already, and goes before those who wait for the first time.
        """
        waiter = _Waiter(samples, avoid)
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._dispatch()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter.place.cancelled():
                self._dispatch()  # it may have stood before others that find a place
            else:
                self.release(waiter.place.result(), samples)
            raise

    def release(self, replica: Replica, samples: int) -> None:
        """Give a place back."""
        replica.in_flight -= samples
        self._dispatch()

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether a replica in good health is left beside those to avoid."""
        now = self._loop.time()
        return any(
            replica.url not in avoid and not replica.ejected and replica.cooldown_until <= now
            for replica in self._replicas
        )

    def next_available_at(self) -> float:
        """When the first replica will have rested, by the loop's clock; past if one has now."""
        return min(
            (replica.cooldown_until for replica in self._replicas if not replica.ejected),
            default=-math.inf,
        )

    def succeeded(self, replica: Replica, samples: int, *, started: float) -> None:
        """Note that a request begun at `started` was answered."""
        if started < replica.failed_at:
            return  # sent before the failure, it does not say that that is over
        replica.failures = replica.consecutive_429s = replica.ejections = 0
        replica.limit = min(self._max_concurrency, replica.limit + samples / replica.limit)
        if replica.ejected:
            self._readmit(replica)

    def failed(self, replica: Replica, error: RewardFleetError, *, started: float) -> None:
        """Note what a request begun at `started` was answered instead."""
        if error.kind is ErrorKind.OVERLOADED:
            self._cool_down(replica, error.retry_after or 0.0, started)
        elif started < replica.failed_at:
            pass  # sent before the last failure was known, it tells nothing new
        elif error.kind is ErrorKind.UNAVAILABLE:
            self.eject(replica, started=started, seconds=error.retry_after or 0.0)
        elif error.kind in {ErrorKind.BACKEND_FAILED, ErrorKind.INTERNAL}:
            replica.failures += 1
            if replica.failures >= EJECT_AFTER:
                self.eject(replica, started=started)

    def eject(self, replica: Replica, *, started: float, seconds: float = 0.0) -> None:
        """Send a replica no more requests until it has answered a probe, in `seconds` or later."""
        if started < replica.failed_at:
            return
        replica.failed_at = self._loop.time()
        if not replica.ejected:
            self._eject(replica, seconds)

    async def aclose(self) -> None:
        """Close the connections and end the probes."""
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
        """Give places to those who wait, in order, as far as there are any."""
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.place.done():
                replica = self._choose(waiter)
                if replica is None:
                    self._set_alarm()
                    return
                self._requests += 1
                replica.chosen = self._requests
                replica.in_flight += waiter.samples
                waiter.place.set_result(replica)
            self._waiting.popleft()

    def _choose(self, waiter: _Waiter) -> Replica | None:
        now = self._loop.time()
        roomy = [replica for replica in self._replicas if replica.has_room(waiter.samples)]
        if all(replica.ejected for replica in self._replicas):
            return min(roomy, key=lambda replica: replica.failed_at, default=None)
        return min(
            (each for each in roomy if not each.ejected and each.cooldown_until <= now),
            key=lambda replica: (replica.url in waiter.avoid, replica.in_flight, replica.chosen),
            default=None,
        )

    def _set_alarm(self) -> None:
        """See to it that those who wait are looked at when a replica has rested."""
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
        until = now + seconds + backoff(max(replica.consecutive_429s, 1))
        replica.cooldown_until = max(replica.cooldown_until, until)

    def _eject(self, replica: Replica, seconds: float) -> None:
        replica.ejected = True
        replica.ejections += 1
        away = EJECTION_SECONDS * 2 ** min(replica.ejections - 1, 10)
        away = max(min(away, MAX_EJECTION_SECONDS), seconds)
        if not self._closed:
            replica.timer = self._loop.call_later(away, self._start_probe, replica)
        self._dispatch()  # where it was the last in good health, nobody need wait for it now

    def _start_probe(self, replica: Replica) -> None:
        replica.probe = self._loop.create_task(self._probe(replica))

    async def _probe(self, replica: Replica) -> None:
        """Ask whether an ejected replica is ready again. A request of a user risks no time."""
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
        # A proxy of the environment is for the world outside, not for a fleet's own traffic.
        trust_env=False,
    )
