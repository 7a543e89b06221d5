"""Requests are sent when they are due, whatever became of the ones before.

A caller that waits for an answer before it sends the next request sends fewer requests while the
service is slow, and measures few of the slow ones ("coordinated omission"). Here, arrivals are
planned in advance, and a request's latency begins when it was due, also if it was sent later.
Nothing is retried or sent twice.
"""

import asyncio
import itertools
import json
import random
import ssl
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx

from rewardfleet.http.index import printable
from rewardfleet.http.responses import new_request_id
from rewardfleet.http.transport import receive
from rewardfleet.tls import certificate_problem, tls_context
from rewardfleet.wire.errors import BackendFailed
from rewardfleet.wire.headers import REQUEST_ID_HEADER, TIMEOUT_HEADER

from .requests import ANSWERED, WRONG_SCORE, LoadRequest, outcome_of

#: The most bytes of the requests in flight.
_MAX_BYTES = 512 * 2**20
_MAX_RESPONSE_BYTES = 64 * 2**20
_CONNECT_SECONDS = 5.0
#: Idle connections are used again for less time than services and proxies keep them.
_LIMITS = httpx.Limits(max_connections=1, keepalive_expiry=30.0)
#: A request that got no answer in time has taken at least as long as it was waited for. Without it,
#: latencies would be better the more requests time out. Other failures are not part of them.
_TIMEOUT = "no answer in time"
_WITH_LATENCY = {*ANSWERED, _TIMEOUT, WRONG_SCORE}
#: All services together.
ALL = "all"


@dataclass(frozen=True)
class LoadPlan:
    """When requests are sent and given up, and what makes a run fail; see the command's options."""

    rate: float  #: requests per second on average
    duration_s: float
    timeout_s: float  #: seconds from when a request is due
    max_p99_s: float | None = None  #: of any service
    max_errors: float | None = None  #: share of the requests to any service
    #: Requests beyond so many unanswered ones are not sent, and count as failed: they take memory.
    max_in_flight: int = 1000

    def arrival_times(self) -> Iterator[float]:
        """Return the times at which requests are due, in seconds after the start.

        They come independently of each other, as from many callers (a Poisson process), and are the
        same in each run, so that runs can be compared.
        """
        gaps = random.Random(0)  # noqa: S311 - not for secrets
        times = itertools.accumulate(gaps.expovariate(self.rate) for _ in itertools.repeat(None))
        return itertools.takewhile(lambda due_s: due_s < self.duration_s, times)


@dataclass
class LoadResults:
    """What became of the requests of a run."""

    #: How many requests there are of each kind, by service, and of `ALL`.
    kinds: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: The first message of each kind of failure, by service and kind.
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    #: By service, seconds from when a request was due until it was answered or timed out.
    latencies: defaultdict[str, "array[float]"] = field(
        default_factory=lambda: defaultdict(lambda: array("d"))
    )
    #: Seconds from when a request was due until it was sent, part of its latency.
    lateness: "array[float]" = field(default_factory=lambda: array("d"))
    sending_s: float = 0.0  #: how long requests were sent
    most_in_flight: int = 0  #: the most requests that were sent and not answered yet
    interrupted: bool = False  #: whether the run was ended early

    def add(self, service: str, kind: str, detail: str, seconds: float) -> None:
        """Count a request that has ended, `seconds` after it was due."""
        for name in (service, ALL):
            self.kinds[name][kind] += 1
            if kind not in ANSWERED:
                self.examples.setdefault((name, kind), printable(detail))
            if kind in _WITH_LATENCY:
                self.latencies[name].append(seconds)


class LoadGenerator:
    """Sends the requests of a plan; `results` has what became of them so far.

    Args:
        requests: What is sent, without end.
        urls: The base URLs of services by name.
        api_key: Sent as a bearer token; empty for none.
    """

    def __init__(
        self, plan: LoadPlan, requests: Iterator[LoadRequest], urls: Mapping[str, str], api_key: str
    ) -> None:
        self._plan = plan
        self._requests = requests
        self._urls = urls
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._headers[TIMEOUT_HEADER] = f"{plan.timeout_s:g}"
        self._headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Each has one connection: a pool of httpx searches all of its own for each request.
        self._idle: dict[str, list[httpx.AsyncHTTPTransport]] = {name: [] for name in urls}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0  # of requests in flight
        self.results = LoadResults()

    async def run(self) -> None:
        """Send all requests, and wait for the answers; if it is cancelled, give them up."""
        now = asyncio.get_running_loop().time
        start = now()
        try:
            for due_s in self._plan.arrival_times():
                await asyncio.sleep(start + due_s - now())  # at least one turn of the loop
                self._start(next(self._requests), start + due_s)
                self.results.sending_s = now() - start
            await asyncio.sleep(start + self._plan.duration_s - now())
            self.results.sending_s = now() - start
            await asyncio.gather(*self._tasks)  # each ends by its timeout
        except asyncio.CancelledError:
            self.results.interrupted = True
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for http in itertools.chain(*self._idle.values()):
                await http.aclose()

    def _start(self, request: LoadRequest, due: float) -> None:
        if len(self._tasks) >= self._plan.max_in_flight or self._bytes >= _MAX_BYTES:
            self.results.add(request.service, "not sent: too many in flight", "", 0.0)
            return
        task = asyncio.create_task(self._send(request, due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.results.most_in_flight = max(self.results.most_in_flight, len(self._tasks))

    async def _send(self, request: LoadRequest, due: float) -> None:
        now = asyncio.get_running_loop().time
        body = json.dumps(request.body).encode()
        self._bytes += len(body)
        kind, detail = "unfinished", ""
        try:
            async with asyncio.timeout_at(due + self._plan.timeout_s):
                self.results.lateness.append(now() - due)
                response = await self._post(request, body)
            kind, detail = outcome_of(request, response.status_code, response.content)
        except TimeoutError:
            kind, detail = _TIMEOUT, f"after {self._plan.timeout_s:g} s"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            kind = "cannot be reached"
            detail = certificate_problem(error) or str(error) or "it took too long"
        except (httpx.RequestError, ssl.SSLError) as error:
            kind, detail = "disconnected", str(error) or "the connection was closed"
        except BackendFailed as error:
            kind, detail = "disconnected", error.detail
        finally:
            self._bytes -= len(body)
            self.results.add(request.service, kind, detail, now() - due)

    async def _post(self, request: LoadRequest, body: bytes) -> httpx.Response:
        sent = httpx.Request(
            "POST",
            self._urls[request.service] + request.path,
            headers={**self._headers, REQUEST_ID_HEADER: new_request_id()},
            content=body,
            extensions={"timeout": {"connect": _CONNECT_SECONDS}},
        )
        idle = self._idle[request.service]
        http = idle.pop() if idle else httpx.AsyncHTTPTransport(tls_context(), limits=_LIMITS)
        try:
            return await receive(http, sent, _MAX_RESPONSE_BYTES)
        finally:
            idle.append(http)
