"""Sends requests when they are due, whatever became of the ones before.

A caller that waits for an answer before it sends the next request sends fewer requests while the
service is slow, and measures few of the slow ones ("coordinated omission"). Here, arrivals are
planned in advance, and a request's latency begins when it was due, also if it was sent later.
Nothing is retried or sent twice.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rewardfleet.timeouts import timeout_at
from rewardfleet.wire.headers import TIMEOUT_HEADER

from .http import ConnectFailed, Sender
from .requests import LoadRequest
from .results import TIMEOUT, LoadResults, outcome_of

#: The most bytes of the requests in flight.
_MAX_BYTES = 512 * 2**20


@dataclass(frozen=True)
class LoadPlan:
    """What is sent, and for how long.

    Attributes:
        rate: Requests per second on average, to all services together.
        duration_s: Seconds in which requests are sent.
        timeout_s: Seconds from when a request is due until it is given up.
        max_in_flight: Requests that are due beyond this many unanswered ones are not sent, and
            counted as failures.
    """

    rate: float
    duration_s: float
    timeout_s: float
    max_in_flight: int

    def arrival_times(self) -> Iterator[float]:
        """Return the times at which requests are due, in seconds after the start.

        They come independently of each other, as from many callers (a Poisson process), and are the
        same in each run, so that runs can be compared.
        """
        gaps = random.Random(0)  # noqa: S311 - not for secrets
        times = itertools.accumulate(gaps.expovariate(self.rate) for _ in itertools.repeat(None))
        return itertools.takewhile(lambda due_s: due_s < self.duration_s, times)


class LoadGenerator:
    """Sends the requests of a plan.

    Args:
        plan: When requests are sent.
        requests: What is sent, without end.
        urls: The base URLs of services by name.
        api_key: Sent as a bearer token; empty for none.

    Attributes:
        results: What became of the requests so far.
    """

    def __init__(
        self, plan: LoadPlan, requests: Iterator[LoadRequest], urls: Mapping[str, str], api_key: str
    ) -> None:
        self._plan = plan
        self._requests = requests
        headers = {"Content-Type": "application/json", TIMEOUT_HEADER: f"{plan.timeout_s:g}"}
        headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._senders = {name: Sender(url, headers) for name, url in urls.items()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0  # of requests in flight
        self.results = LoadResults()

    async def run(self) -> None:
        """Send all requests, and wait for the answers; if it is cancelled, give them up."""
        try:
            await self._send_all()
            await asyncio.gather(*self._tasks)  # each ends by its timeout
        except asyncio.CancelledError:
            self.results.interrupted = True
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for sender in self._senders.values():
                sender.close()

    async def _send_all(self) -> None:
        now = asyncio.get_running_loop().time
        start = now()
        try:
            for due_s in self._plan.arrival_times():
                await asyncio.sleep(start + due_s - now())  # at least one turn of the loop
                request = next(self._requests)
                if len(self._tasks) >= self._plan.max_in_flight or self._bytes >= _MAX_BYTES:
                    self.results.add(request.service, "not sent: too many in flight", "", 0.0)
                    continue
                task = asyncio.create_task(self._send(request, start + due_s))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self.results.most_in_flight = max(self.results.most_in_flight, len(self._tasks))
            await asyncio.sleep(start + self._plan.duration_s - now())
        finally:
            self.results.sending_s = now() - start

    async def _send(self, request: LoadRequest, due: float) -> None:
        now = asyncio.get_running_loop().time
        body = json.dumps(request.body).encode()
        self._bytes += len(body)
        kind, detail = "unfinished", ""
        try:
            async with timeout_at(due + self._plan.timeout_s):
                self.results.lateness.append(now() - due)
                status, answer = await self._senders[request.service].post(request.path, body)
            kind, detail = outcome_of(request, status, answer)
        except TimeoutError:
            kind, detail = TIMEOUT, f"after {self._plan.timeout_s:g} s"
        except ConnectFailed as error:
            kind, detail = "cannot be reached", str(error)
        except (OSError, EOFError, ValueError, LookupError) as error:
            kind, detail = "disconnected", str(error) or "the connection was closed"
        finally:
            self._bytes -= len(body)
            self.results.add(request.service, kind, detail, now() - due)
