"""What the benchmarks share: limits, measuring, services in processes of their own, and load.

The load comes from raw sockets, as an HTTP library would be slower than the services.
"""

import asyncio
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

from rewardfleet.wire.frames import JSON_TYPE, LENGTH_BYTES, attach_pixels
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.settings import ServerSettings
from rewardfleet_server.system.redis_server import unreachable_reason
from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

sys.path.append(str(Path(__file__).parent.parent))
from server.processes import descendants, service_process

#: Rounds of cached scores, and seconds of each: short ones, as other load comes and goes.
HIT_ROUNDS, HIT_SECONDS = 9, 0.7

# Limits


@dataclass(frozen=True)
class Ratio:
    """A measurement and its baseline.

    Attributes:
        limit: The limit of their ratio: `<= 2`, `>= 1/6`, `0.8 to 1.2`, or empty for none.
    """

    name: str
    ours: float
    baseline: float
    limit: str

    @property
    def value(self) -> float:
        return self.ours / self.baseline

    @property
    def is_met(self) -> bool:
        match self.limit.split():
            case ["<=", most]:
                return self.value <= Fraction(most)
            case [">=", least]:
                return self.value >= Fraction(least)
            case [least, "to", most]:
                return Fraction(least) <= self.value <= Fraction(most)
            case []:
                return True
        raise ValueError(f"not a limit: {self.limit}")


def report(ratios: list[Ratio]) -> int:
    """Print a table; return the exit status: 1 if a ratio misses its limit."""
    titles = f"{'rewardfleet':>11} {'baseline':>10} {'ratio':>7} {'limit':>10}"
    print(f"\n{'measurement; baseline':62} {titles}")
    for each in ratios:
        figures = f"{each.ours:11.2f} {each.baseline:10.2f} {each.value:7.3f} {each.limit:>10}"
        print(f"{each.name:62} {figures} {'' if each.is_met else 'MISSED'}")
    return 0 if all(each.is_met for each in ratios) else 1


# Measuring


def medians_in_turns(*measurements: Callable[[], float], rounds: int) -> list[float]:
    """Measure in turns, so that other load on the machine affects all; return the medians."""
    rows = [[measure() for measure in measurements] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds by which a clock advances during `work`."""
    started = clock()
    work()
    return clock() - started


def cpu_seconds(pid: int, *, with_descendants: bool = True) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    ticks = 0
    for each in (pid, *(descendants(pid) if with_descendants else ())):
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11 : 15 if with_descendants else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, *, with_descendants: bool = True) -> float:
    """Return the memory of a process and its descendants."""
    pages = 0
    for each in (pid, *(descendants(pid) if with_descendants else ())):
        with suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Services


def serving(
    create_app: Callable[..., RewardApp], settings: ServerSettings, *more: object
) -> AbstractContextManager[tuple[int, int]]:
    """Run a service in another process as in production, with its log; yield port and pid."""
    return in_process(_service, create_app, settings, *more)


def _service(
    create_app: Callable[..., RewardApp], settings: ServerSettings, *more: object
) -> uvicorn.Server:
    configure_logging(settings.log_level)
    return Server(create_app(settings, *more), settings)


def empty_endpoint(request_type: type[BaseModel]) -> uvicorn.Server:
    """Return a FastAPI application whose one endpoint validates a body and does nothing."""
    app = FastAPI()

    @app.post("/score")
    async def score(request: request_type) -> dict[str, float]:  # type: ignore[valid-type]
        return {"score": 1.0}

    return _plain_server(app)


def empty_frames_endpoint(request_type: type[BaseModel]) -> uvicorn.Server:
    """Return the same for raw frames: it validates the JSON, and gives the frames their pixels."""
    app = FastAPI()

    @app.post("/score")
    async def score(request: Request) -> dict[str, float]:
        body = memoryview(await request.body())
        end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
        item = validate_json(request_type, bytes(body[LENGTH_BYTES:end]))
        attach_pixels([item.frames], body[end:])  # type: ignore[attr-defined] # it has frames
        return {"score": 1.0}

    return _plain_server(app)


def _plain_server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", log_config=None, access_log=False)
    )


@contextmanager
def in_process(
    create_server: Callable[..., uvicorn.Server], *arguments: object
) -> Iterator[tuple[int, int]]:
    """Create and run a server in another process; yield port and pid."""
    with spawned(_run_server, create_server, *arguments) as (pipe, pid):
        assert pipe.poll(60), "the server did not start"
        yield pipe.recv(), pid


def _run_server(
    pipe: Pipe, create_server: Callable[..., uvicorn.Server], *arguments: object
) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    server = create_server(*arguments)

    def send_port() -> None:
        wait_until(lambda: server.started)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        with suppress(EOFError):
            pipe.recv()  # ends with the benchmark, also if that is killed
        server.should_exit = True

    threading.Thread(target=send_port, daemon=True).start()
    server.run()


@contextmanager
def spawned(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Pipe, int]]:
    """Call `target` in another process, with a pipe; yield the other end of it, and the pid."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield ours, process.pid
    finally:
        process.terminate()
        process.join(10)
        process.kill()


@contextmanager
def command_serving(name: str, *flags: str) -> Iterator[str]:
    """Run `rewardfleet serve NAME`; yield its URL as soon as it is ready."""
    with service_process(name, *flags) as (process, url):
        wait_until_ready(process, f"{url}/readyz")
        yield url


def wait_until_ready(process: subprocess.Popen[Any], url: str) -> None:
    """Wait until a server answers at `url`; it may have to load a model."""

    def is_ready() -> bool:
        assert process.poll() is None, "the server did not start"
        with suppress(httpx.TransportError):  # it does not listen yet, or is busy
            return httpx.get(url, trust_env=False).status_code == 200
        return False

    wait_until(is_ready, 180)


# Load


def post(path: str, body: bytes, media_type: str = JSON_TYPE) -> bytes:
    """Return an HTTP POST request with a body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Answer(NamedTuple):
    """The body of a response, and the seconds until it had arrived."""

    body: bytes
    seconds: float


class Connection:
    """A persistent connection, on which every response must be a 200."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def request(self, request: bytes) -> Answer:
        started = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        assert int(head[9:12]) == 200, body
        return Answer(body, time.perf_counter() - started)

    def close(self) -> None:
        self._writer.close()


def send(port: int, requests: Iterable[bytes], *, callers: int = 1) -> tuple[list[Answer], float]:
    """Send requests over a connection per caller; return the answers and the seconds for all."""

    async def send_all() -> tuple[list[Answer], float]:
        connections = [await Connection.open(port) for _ in range(callers)]
        waiting = iter(requests)

        async def caller(connection: Connection) -> list[Answer]:
            return [await connection.request(request) for request in waiting]

        started = time.perf_counter()
        answers = await asyncio.gather(*map(caller, connections))
        seconds = time.perf_counter() - started
        for connection in connections:
            connection.close()
        return list(itertools.chain(*answers)), seconds

    return asyncio.run(send_all())


def rate(port: int, request: bytes, *, callers: int, seconds: float) -> float:
    """Return how many requests per second are answered."""
    requests = itertools.takewhile(before(seconds), itertools.repeat(request))
    answers, taken = send(port, requests, callers=callers)
    return len(answers) / taken


def before(seconds: float) -> Callable[[object], bool]:
    """Return a condition of any value that holds for some seconds."""
    deadline = time.perf_counter() + seconds
    return lambda _: time.perf_counter() < deadline


def cache_hit_rates(
    service: tuple[int, int],
    request: bytes,
    request_type: type[BaseModel],
    *,
    raw_frames: bool = False,
) -> list[float]:
    """Return requests per second of a service, and of an empty endpoint that gets the same.

    Print their CPU time, which depends less on what else the machine does.

    Args:
        service: Its port and pid.
    """
    create_empty = empty_frames_endpoint if raw_frames else empty_endpoint
    with in_process(create_empty, request_type) as empty:
        for port, _ in (service, empty):
            rate(port, request, callers=8, seconds=1)
        [answer], _ = send(service[0], [request])
        assert b'"cached":true' in answer.body
        microseconds: dict[int, list[float]] = {service[1]: [], empty[1]: []}

        def measure(port: int, pid: int) -> float:
            started = cpu_seconds(pid)
            requests = itertools.takewhile(before(HIT_SECONDS), itertools.repeat(request))
            answers, seconds = send(port, requests, callers=8)
            microseconds[pid].append((cpu_seconds(pid) - started) / len(answers) * 1e6)
            return len(answers) / seconds

        rates = medians_in_turns(
            partial(measure, *service), partial(measure, *empty), rounds=HIT_ROUNDS
        )
    ours, other = map(statistics.median, microseconds.values())
    print(f"CPU us of a cached score: {ours:.0f}; an empty endpoint: {other:.0f}", end="; ")
    print(f"ratio: {other / ours:.2f}")
    return rates


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a `redis-server` that stores nothing on disk; yield its URL."""
    url = f"redis://127.0.0.1:{(port := free_port())}/0"
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: unreachable_reason(url, 0.4, ("PING",)) is None)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def compare_ways(ways: dict[str, tuple[int, bytes]], *, calls: int, warm_up: int) -> list[float]:
    """Send a request to each port in turns; print percentiles and rates; return ms at p50."""

    async def milliseconds() -> dict[str, list[float]]:
        connections = {name: await Connection.open(port) for name, (port, _) in ways.items()}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(warm_up + calls):
            for name, connection in connections.items():
                taken[name].append((await connection.request(ways[name][1])).seconds * 1000)
        for connection in connections.values():
            connection.close()
        return taken

    medians: list[float] = []
    for name, taken in asyncio.run(milliseconds()).items():
        percentiles = statistics.quantiles(taken[warm_up:], n=100)
        medians.append(percentiles[49])
        one, many = (rate(*ways[name], callers=callers, seconds=2) for callers in (1, 32))
        print(
            f"{name:10} p50 {percentiles[49]:.3f} ms ({medians[-1] / medians[0]:.1f}x), "
            f"p90 {percentiles[89]:.3f} ms, p99 {percentiles[98]:.3f} ms; "
            f"1 connection {one:.0f}/s, 32 connections {many:.0f}/s"
        )
    return medians


@contextmanager
def health_watched(port: int) -> Iterator[Callable[[], float]]:
    """Poll `/healthz` from another process; yield a function that returns the slowest answer."""
    with spawned(_watch_health, port) as (pipe, _):
        assert pipe.recv() == "watching"

        def slowest() -> float:
            pipe.send("stop")
            seconds: float = pipe.recv()
            return seconds

        yield slowest


def _watch_health(pipe: Pipe, port: int) -> None:
    async def watch() -> float:
        connection = await Connection.open(port)
        slowest = 0.0
        pipe.send("watching")
        while not pipe.poll():
            answer = await connection.request(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            slowest = max(slowest, answer.seconds)
            await asyncio.sleep(0.005)
        connection.close()
        return slowest

    pipe.send(asyncio.run(watch()))
