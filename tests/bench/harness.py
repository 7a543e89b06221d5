"""What the benchmarks share: limits, measuring, services in processes of their own, and load.

A benchmark consists of functions that yield ratios, and ends with `run`. The load comes from raw
sockets, as an HTTP library would be slower than the services.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

from rewardfleet.wire.frames import JSON_TYPE, LENGTH_BYTES, encode_body
from rewardfleet.wire.score import BatchRequest
from rewardfleet.wire.validation import validate_json
from rewardfleet_server import serve
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.system.redis_server import unreachable_reason
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.up.settings import free_port

sys.path.append(str(Path(__file__).parent.parent))
from running import running
from server.processes import descendants

#: Rounds of cached scores, and seconds of each: short ones, as other load comes and goes.
HIT_ROUNDS, HIT_SECONDS = 9, 0.7

# Limits


class Ratio(NamedTuple):
    """A measurement and its baseline, and the limit of their ratio: `<= 2`, `>= 1/6`."""

    name: str
    ours: float
    baseline: float
    limit: str

    @property
    def value(self) -> float:
        return self.ours / self.baseline

    @property
    def is_met(self) -> bool:
        sign, bound = self.limit.split()
        return self.value <= Fraction(bound) if sign == "<=" else self.value >= Fraction(bound)


def run(parts: dict[str, Callable[[], Iterable[Ratio]]]) -> NoReturn:
    """Run the parts that the command line names, or all; exit with 1 if a limit is missed."""
    wanted = sys.argv[1:] or [*parts]
    if unknown := {*wanted} - parts.keys():
        sys.exit(f"no such part: {', '.join(unknown)}; there are: {', '.join(parts)}")
    ratios = [ratio for name in wanted for ratio in parts[name]()]
    titles = f"{'rewardfleet':>11} {'baseline':>10} {'ratio':>7} {'limit':>10}"
    print(f"\n{'measurement; baseline':66} {titles}")
    for each in ratios:
        figures = f"{each.ours:11.2f} {each.baseline:10.2f} {each.value:7.3f} {each.limit:>10}"
        print(f"{each.name:66} {figures} {'' if each.is_met else 'MISSED'}")
    sys.exit(not all(each.is_met for each in ratios))


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


def p99(values: Iterable[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def cpu_seconds(pid: int, *, with_descendants: bool = True) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    ticks = 0
    for each in (pid, *(descendants(pid) if with_descendants else ())):
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11 : 15 if with_descendants else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, *, with_descendants: bool = True) -> float:
    pages = 0
    for each in (pid, *(descendants(pid) if with_descendants else ())):
        with suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Servers


class Server(NamedTuple):
    """A server in a process of its own."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_of(self, work: Callable[[], object], *, with_descendants: bool = True) -> float:
        """Return the CPU seconds of its process, and of those that it started, during `work`."""
        return seconds_of(work, partial(cpu_seconds, self.pid, with_descendants=with_descendants))


def serving(
    name: str, judge: FakeJudge | None = None, **settings: object
) -> AbstractContextManager[Server]:
    """Run a service in another process as in production, with its log.

    Args:
        name: The service.
        judge: The only judge of the video service.
        settings: Those that differ from the default ones.
    """
    return in_process(_service, name, judge, settings)


def _service(name: str, judge: FakeJudge | None, given: dict[str, object]) -> uvicorn.Server:
    settings = SERVICES[name].settings.load()(port=0, **given)
    configure_logging(settings.log_level)
    judges = [{"fake": judge}] if judge else []
    return serve.Server(SERVICES[name].app.load()(settings, *judges), settings)


def empty_endpoint(request_type: type[BaseModel], has_raw_frames: bool) -> uvicorn.Server:
    """Return a FastAPI application whose one endpoint validates a body and does nothing.

    Of raw frames it validates the JSON, and gives the frames their pixels.
    """

    async def of_json(request: request_type) -> dict[str, float]:
        return {"score": 1.0}

    async def of_frames(request: Request) -> dict[str, float]:
        body = memoryview(await request.body())
        end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
        item = validate_json(request_type, bytes(body[LENGTH_BYTES:end]))
        item.frames.set_pixels(body[end:][item.frames.offset : item.frames.end])
        return {"score": 1.0}

    app = FastAPI()
    app.post("/score")(of_frames if has_raw_frames else of_json)
    config = uvicorn.Config(app, port=0, http="httptools", log_config=None, access_log=False)
    return uvicorn.Server(config)


@contextmanager
def in_process(
    create_server: Callable[..., uvicorn.Server], *arguments: object
) -> Iterator[Server]:
    with spawned(_run_server, create_server, *arguments) as (pipe, pid):
        assert pipe.poll(60), "the server did not start"
        yield Server(pipe.recv(), pid)


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
def program_serving(path: str, *words: str | Path, build: Path | None = None) -> Iterator[Server]:
    """Run a Python program that takes a port as its last word, and wait until `path` answers.

    Args:
        path: Of its URL.
        words: Of its command.
        build: Another checkout, whose client and services it imports.
    """
    port = free_port()
    page, variables = f"http://127.0.0.1:{port}{path}", environment_of(build)
    # It may have to load a model.
    with running([sys.executable, *words, port], page, seconds=180, env=variables) as process:
        yield Server(port, process.pid)


def environment_of(build: Path | None) -> dict[str, str]:
    own = {"PYTHONPATH": f"{build}/clients:{build}/services"} if build else {}
    return {**os.environ, **own}


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a `redis-server` that stores nothing on disk; yield its URL."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
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


# Load


def post(path: str, body: object) -> bytes:
    """Return an HTTP POST request.

    Args:
        path: Where to.
        body: JSON, also as bytes; or a request of the client or a list of these, which may have
            raw frames.
    """
    media_type = JSON_TYPE
    if isinstance(body, list):
        body = BatchRequest[Any].model_construct(items=body)
    if isinstance(body, BaseModel):
        media_type, parts = encode_body(body)
        body = b"".join(parts)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Answer(NamedTuple):
    body: bytes
    seconds: float

    @property
    def score(self) -> dict[str, Any]:
        return json.loads(self.body)


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
    service: Server, request: bytes, request_type: type[BaseModel], *, raw_frames: bool = False
) -> list[float]:
    """Return requests per second of a service, and of an empty endpoint that gets the same.

    Print their CPU time, which depends less on what else the machine does.
    """
    with in_process(empty_endpoint, request_type, raw_frames) as empty:
        for port, _ in (service, empty):
            rate(port, request, callers=8, seconds=1)
        [answer], _ = send(service.port, [request])
        assert b'"cached":true' in answer.body
        microseconds: dict[Server, list[float]] = {service: [], empty: []}

        def measure(server: Server) -> float:
            started = cpu_seconds(server.pid)
            requests = itertools.takewhile(before(HIT_SECONDS), itertools.repeat(request))
            answers, seconds = send(server.port, requests, callers=8)
            microseconds[server].append((cpu_seconds(server.pid) - started) / len(answers) * 1e6)
            return len(answers) / seconds

        rates = medians_in_turns(
            partial(measure, service), partial(measure, empty), rounds=HIT_ROUNDS
        )
    ours, other = map(statistics.median, microseconds.values())
    print(f"CPU us of a cached score: {ours:.0f}; an empty endpoint: {other:.0f}", end="; ")
    print(f"ratio: {other / ours:.2f}")
    return rates


@contextmanager
def until_stopped(target: Callable[..., None], *arguments: object) -> Iterator[Callable[[], Any]]:
    """Call `target` in another process; yield a function that stops it and returns its result.

    The target sends something once it has begun, works until something arrives in its pipe, and
    sends its result.
    """
    with spawned(target, *arguments) as (pipe, _):
        assert pipe.poll(120), "it did not begin"
        pipe.recv()

        def stop() -> Any:
            pipe.send("stop")
            return pipe.recv()

        yield stop


def watch_health(pipe: Pipe, port: int) -> None:
    """Poll `/healthz`; the result is the slowest answer, in seconds."""

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
