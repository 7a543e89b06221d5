"""Sends requests when they are due, whatever became of the ones before.

A caller that waits for an answer before it sends the next request sends fewer requests while the
service is slow, and measures few of the slow ones ("coordinated omission"). Here, arrivals are
planned in advance, and a request's latency begins when it was due, also if it was sent later.
Nothing is retried or sent twice.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from rewardfleet.wire.headers import TIMEOUT_HEADER
from rewardfleet_server.up.upstream import Pool, Unreachable, UpstreamFailed

from .requests import LoadRequest, Source
from .results import (
    DISCONNECTED,
    NOT_SENT,
    TIMEOUT,
    UNFINISHED,
    UNREACHABLE,
    Outcome,
    Results,
    outcome_of,
)

#: How arrivals are distributed.
Arrivals = Literal["poisson", "constant"]

#: Limits on the bytes of a response, and of all requests and responses in flight.
_MAX_RESPONSE_BYTES, _MAX_BYTES = 64 * 2**20, 512 * 2**20


@dataclass(frozen=True)
class Plan:
    """What is sent, and for how long.

    Attributes:
        rate: Requests per second on average.
        duration_s: Seconds in which requests are sent.
        arrivals: poisson: requests come independently of each other, as from many callers.
            constant: at equal distances.
        timeout_s: Seconds from when a request is due until it is given up.
        max_in_flight: Requests that are due beyond this many unanswered ones are not sent, and
            counted as failures.
    """

    rate: float
    duration_s: float
    arrivals: Arrivals = "poisson"
    timeout_s: float = 60.0
    max_in_flight: int = 1000

    def arrival_times(self) -> Iterator[float]:
        """Return the times at which requests are due, in seconds after the start.

        They are the same in each run, so that runs can be compared.
        """
        return itertools.takewhile(lambda due_s: due_s < self.duration_s, self._times())

    def _times(self) -> Iterator[float]:
        if self.arrivals == "constant":
            return (number / self.rate for number in itertools.count())
        gaps = random.Random(0)  # noqa: S311 - not for secrets
        return itertools.accumulate(gaps.expovariate(self.rate) for _ in itertools.repeat(None))


class LoadGenerator:
    """Sends the requests of a plan.

    Args:
        plan: When requests are sent.
        source: What is sent.
        urls: The base URL of each service in `source`.
        api_key: Sent as a bearer token; empty for none.

    Attributes:
        results: The results so far.
        in_flight: How many requests are sent and not answered yet.
    """

    def __init__(self, plan: Plan, source: Source, urls: Mapping[str, str], api_key: str) -> None:
        self._plan = plan
        self._source = source
        self._targets = {name: _Target(url, api_key, plan.timeout_s) for name, url in urls.items()}
        self._pool = Pool()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0  # of requests and responses in flight
        self.results = Results(plan.duration_s)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    async def run(self, interrupted: asyncio.Event) -> None:
        """Send all requests, and wait for the answers.

        Args:
            interrupted: Ends the run early. Requests in flight are then given up.
        """
        sending = asyncio.create_task(self._send_all())
        stop = asyncio.create_task(interrupted.wait())
        try:
            await asyncio.wait([sending, stop], return_when=asyncio.FIRST_COMPLETED)
            while self._tasks and not stop.done():  # each ends by its timeout
                await asyncio.wait([stop, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            self.results.interrupted = stop.done()
            if sending.done():
                sending.result()  # an internal error
        finally:
            await _cancel(sending, stop)
            await _cancel(*self._tasks)
            self._pool.close()

    async def _send_all(self) -> None:
        now = asyncio.get_running_loop().time
        start = now()
        try:
            for due_s in self._plan.arrival_times():
                await asyncio.sleep(start + due_s - now())  # at least one turn of the loop
                request = self._source.next()
                self.results.add_due(request.service, due_s)
                if len(self._tasks) >= self._plan.max_in_flight or self._bytes >= _MAX_BYTES:
                    self.results.add(request.service, due_s, Outcome(NOT_SENT), 0.0)
                    continue
                self._bytes += len(request.body)
                task = asyncio.create_task(self._send(request, start, due_s))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self.results.most_in_flight = max(self.results.most_in_flight, len(self._tasks))
            await asyncio.sleep(start + self._plan.duration_s - now())
        finally:
            self.results.sending_s = now() - start

    async def _send(self, request: LoadRequest, start: float, due_s: float) -> None:
        now = asyncio.get_running_loop().time
        due = start + due_s
        outcome = Outcome(UNFINISHED)
        try:
            async with asyncio.timeout_at(due + self._plan.timeout_s):
                outcome = await self._exchange(request, due)
        except TimeoutError:
            outcome = Outcome(TIMEOUT, f"after {self._plan.timeout_s:g} s")
        except Unreachable as error:
            outcome = Outcome(UNREACHABLE, str(error))
        except UpstreamFailed as error:
            outcome = Outcome(DISCONNECTED, str(error))
        finally:
            self._bytes -= len(request.body)
            self.results.add(request.service, due_s, outcome, now() - due)

    async def _exchange(self, request: LoadRequest, due: float) -> Outcome:
        self.results.lateness.add(asyncio.get_running_loop().time() - due)
        target = self._targets[request.service]
        connection = await self._pool.acquire(target.address)
        body, more = bytearray(), True
        try:
            connection.begin(is_head=False)
            await connection.write(target.head(request) + request.body)
            connection.is_request_sent = True
            status, _ = await connection.head(self._plan.timeout_s)
            while more:
                part, more = await connection.read(self._plan.timeout_s)
                body += part
                self._bytes += len(part)
                if len(body) > _MAX_RESPONSE_BYTES or self._bytes > 2 * _MAX_BYTES:
                    raise UpstreamFailed("its response is too large")
        finally:
            self._bytes -= len(body)
            self._pool.release(target.address, connection)
        return outcome_of(request, status, bytes(body))


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Target:
    """Where the requests of a service go."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.address = f"{parts.scheme}://{host}"
        self._path = parts.path.rstrip("/")
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = (
            f"Host: {host}\r\nContent-Type: application/json\r\n"
            f"{TIMEOUT_HEADER}: {timeout_s:g}\r\n{authorization}"
        )

    def head(self, request: LoadRequest) -> bytes:
        """Return the request line and the headers."""
        return (
            f"POST {self._path}{request.path} HTTP/1.1\r\n{self._headers}"
            f"Content-Length: {len(request.body)}\r\n\r\n"
        ).encode()
