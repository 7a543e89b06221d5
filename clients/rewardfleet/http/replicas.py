"""The replicas of a service: which one gets a request, pauses, and the queue of the client.

A request goes to the replica with the fewest unanswered items. Requests without capacity wait
here, in an O(n) queue: httpx's pool searches all waiting requests at each step, so it is never
given more requests than it has connections.

- A replica that answers 429 gets no requests for its `Retry-After`. Afterwards it gets half as
  many at once, and one more for each round of successes.
- A replica that cannot be reached, answers 503 or as no service does, or stays silent gets none
  for a time that grows with each failure. So does one whose judge fails several times in a row: it
  fails fast, so that it would get most requests. Afterwards it gets one at a time until one
  succeeds. If all replicas have failed, all are used: it is the call that backs off then.
"""

import asyncio
import base64
import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import httpx

from rewardfleet.wire.errors import ErrorKind, RewardFleetError, Unavailable
from rewardfleet.wire.run_state import own_run_states
from rewardfleet.wire.waiting import backoff_with_jitter

T = TypeVar("T")

#: Failed judgments in a row after which a replica is paused.
_PAUSE_AFTER = 5
#: The longest pause of a replica, or before a retry, that a `Retry-After` makes in seconds.
_MAX_REST_SECONDS = 30.0
#: The longest first pause in seconds, doubled by each further one.
_BACKOFF_SECONDS = 0.5
#: The longest of all pauses in seconds.
_MAX_BACKOFF_SECONDS = 8.0


def retry_wait(nth: int, error: RewardFleetError) -> float:
    """Return the seconds to wait before retry `nth` (1, 2, …): its `Retry-After`, and jitter."""
    rest = min(error.retry_after or 0.0, _MAX_REST_SECONDS)
    return rest + backoff_with_jitter(nth, _BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)


@dataclass(eq=False)
class Replica:
    """One base URL, its connections, and its state. Times are those of the loop's clock."""

    url: str  #: without a password
    #: No client of httpx, whose redirects, cookies and hooks take 7% of the CPU time of a call.
    http: httpx.AsyncHTTPTransport
    headers: Mapping[str, str]  #: of all its requests
    limit: float  #: items that may be unanswered at once
    run_state: str = ""  #: the id of its store, as it last answered
    returns_ids: bool = False  #: whether it has answered with the `X-Request-Id` of a request
    in_flight: int = 0  #: items sent and not answered yet
    last_used: int = 0  #: the number of the last request that it got
    failed_judgments: int = 0  #: since the last success
    strikes: int = 0  #: 429s and failures since the last success
    is_failing: bool = False  #: whether the last of them was a failure
    struck_at: float = -math.inf  #: when that was
    paused_until: float = -math.inf
    heard_at: float = -math.inf  #: when it last answered a request
    #: The search for the service, if its URL seems wrong.
    search: asyncio.Task[str | None] | None = None

    def move(self, url: str) -> None:
        """Use another URL, as the one before was wrong."""
        self.url, self.strikes, self.is_failing = url, 0, False
        self.struck_at = self.paused_until = -math.inf

    async def unless_silent(self, seconds: float, answer: Coroutine[Any, Any, T]) -> T:
        """Await an answer as long as the replica answers any request so often, else `Unavailable`.

        A busy replica may take until the deadline of a call; a frozen one answers nothing.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            due = max(asked_at, self.heard_at) + seconds
            if due <= loop.time():
                limit.reschedule(due)
            else:
                timer = loop.call_at(due, check)

        timer = loop.call_at(asked_at + seconds, check)
        try:
            async with asyncio.timeout(None) as limit:
                return await answer
        except TimeoutError:
            raise Unavailable(f"{self.url} has answered nothing for {seconds:.3g} s") from None
        finally:
            timer.cancel()


class _Waiter(NamedTuple):
    item_count: int
    avoid: Collection[str]
    granted: asyncio.Future[Replica]  #: once its items are counted in its `in_flight`


class Replicas:
    """The replicas of one service, in one event loop. `max_concurrency`: see `RewardFleet`."""

    def __init__(
        self,
        urls: Sequence[str],
        connect: Callable[[str, int], httpx.AsyncHTTPTransport],
        headers: Mapping[str, str],
        max_concurrency: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_concurrency = max_concurrency
        # The size of a compressed response is not known before it is in memory.
        own = {"user-agent": f"python-httpx/{httpx.__version__}", "accept-encoding": "identity"}
        most = max_concurrency
        self._replicas = [
            Replica(plain, connect(plain, most), {**headers, **own, **authorization}, most)
            for plain, authorization in map(_without_user, urls)
        ]
        self._waiting: deque[_Waiter] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._requests = 0

    @property
    def urls(self) -> list[str]:
        """The base URLs, without passwords."""
        return [each.url for each in self._replicas]

    async def acquire(self, item_count: int, *, avoid: Collection[str], at_front: bool) -> Replica:
        """Wait for capacity at a replica, at best not one to `avoid`; `release` gives it back.

        A request that has waited before is put `at_front` of the queue.
        """
        if not self._waiting and (free := self._take(item_count, avoid)) is not None:
            return free
        waiter = _Waiter(item_count, avoid, self._loop.create_future())
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
        """Return whether there is a replica other than those to avoid that may be used now."""
        now = self._loop.time()
        return any(
            each.url not in avoid and not each.is_failing and each.paused_until <= now
            for each in self._replicas
        )

    def check_run_state(self, service: str) -> None:
        """Raise `Conflict` if replicas have run state of their own."""
        if len(self._replicas) > 1:
            ids = {each.url: each.run_state for each in self._replicas}
            if problem := own_run_states(service, ids):
                raise problem

    def succeeded(self, replica: Replica, item_count: int, *, started: float) -> None:
        """Record that a request that started at `started`, by the loop's clock, was answered."""
        if started < replica.struck_at:
            return  # it was sent before the failure, so it does not show that the failure is over
        replica.failed_judgments = replica.strikes = 0
        replica.is_failing, replica.paused_until = False, -math.inf
        replica.limit = min(self._max_concurrency, replica.limit + item_count / replica.limit)

    def failed(self, replica: Replica, error: RewardFleetError, *, started: float) -> None:
        """Record the failure of a request that started at `started`, by the loop's clock."""
        if started < replica.struck_at:
            return  # it was sent before the last failure was known, so it adds nothing
        is_overloaded = error.kind is ErrorKind.OVERLOADED
        if not (is_overloaded or error.kind is ErrorKind.UNAVAILABLE or error.is_foreign):
            # Other kinds are the failure of this request, and not of the replica.
            replica.failed_judgments += error.kind in {ErrorKind.BACKEND_FAILED, ErrorKind.INTERNAL}
            if replica.failed_judgments < _PAUSE_AFTER:
                return
        replica.struck_at = self._loop.time()
        replica.strikes += 1
        replica.is_failing = not is_overloaded
        if is_overloaded:
            replica.limit = max(1.0, min(replica.limit, replica.in_flight) / 2)
        pause = min(retry_wait(replica.strikes, error), _MAX_REST_SECONDS)
        replica.paused_until = replica.struck_at + pause

    async def aclose(self) -> None:
        """Close the connections."""
        if self._alarm is not None:
            self._alarm.cancel()
        for replica in self._replicas:
            if replica.search is not None:
                replica.search.cancel()
            await replica.http.aclose()

    def _dispatch(self) -> None:
        """Grant capacity to waiting requests, in order, while there is any."""
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.granted.done():
                replica = self._take(waiter.item_count, waiter.avoid)
                if replica is None:
                    self._set_alarm()
                    return
                waiter.granted.set_result(replica)
            self._waiting.popleft()

    def _take(self, item_count: int, avoid: Collection[str]) -> Replica | None:
        """Take capacity at the replica that a request should go to; None if there is none."""
        now = self._loop.time()
        all_fail = all(each.is_failing for each in self._replicas)
        chosen, least = None, None
        for each in self._replicas:
            if each.paused_until > now and not all_fail:
                continue
            is_trial = each.is_failing and not all_fail
            if is_trial and (each.in_flight or each.url in avoid):
                continue
            if each.in_flight and each.in_flight + item_count > each.limit:
                continue  # an idle replica accepts any number
            rank = each.url in avoid, each.in_flight, each.last_used
            if least is None or rank < least:
                chosen, least = each, rank
        if chosen is not None:
            self._requests += 1
            chosen.last_used = self._requests
            chosen.in_flight += item_count
        return chosen

    def _set_alarm(self) -> None:
        """Dispatch again when the first pause ends."""
        now = self._loop.time()
        ends = [each.paused_until for each in self._replicas if each.paused_until > now]
        if self._alarm is not None:
            self._alarm.cancel()  # a pause that ends earlier may have begun since
        self._alarm = self._loop.call_at(min(ends), self._dispatch) if ends else None


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL as messages may have it, and the header for its user and password, if any."""
    parsed = httpx.URL(url)
    if not parsed.userinfo:
        return url, {}
    user = f"{parsed.username}:{parsed.password}".encode()
    header = {"authorization": f"Basic {base64.b64encode(user).decode()}"}
    return str(parsed.copy_with(userinfo=b"")), header
