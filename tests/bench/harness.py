"""A load generator that is faster than the servers it measures: raw sockets, no HTTP library."""

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from rewardfleet_server.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import wait_until
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.settings import ToolsSettings


def post(path: str, body: bytes) -> bytes:
    """Return an HTTP POST request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    """Return an HTTP GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Connection:
    """A persistent connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def request(self, request: bytes) -> tuple[int, bytes, float]:
        """Send a request; return status, body and seconds."""
        started = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        return int(head[9:12]), body, time.perf_counter() - started

    def close(self) -> None:
        self._writer.close()


async def rate(port: int, request: bytes, *, callers: int, seconds: float) -> float:
    """Return requests per second over `callers` connections; every response must be a 200."""
    connections = [await Connection.open(port) for _ in range(callers)]
    deadline = time.perf_counter() + seconds

    async def caller(connection: Connection) -> int:
        count = 0
        while time.perf_counter() < deadline:
            status, body, _ = await connection.request(request)
            assert status == 200, body
            count += 1
        return count

    started = time.perf_counter()
    count = sum(await asyncio.gather(*map(caller, connections)))
    seconds_taken = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return count / seconds_taken


@contextmanager
def health_watched(port: int) -> Iterator[Callable[[], float]]:
    """Poll `/healthz` from another process; yield a function that returns the slowest response."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_watch_health, args=(theirs, port), daemon=True)
    process.start()
    assert ours.recv() == "watching"

    def slowest() -> float:
        ours.send("stop")
        seconds: float = ours.recv()
        return seconds

    try:
        yield slowest
    finally:
        process.terminate()
        process.join(10)


def _watch_health(pipe: Pipe, port: int) -> None:
    async def watch() -> float:
        connection = await Connection.open(port)
        slowest = 0.0
        pipe.send("watching")
        while not pipe.poll():
            status, _, seconds = await connection.request(get("/healthz"))
            assert status == 200
            slowest = max(slowest, seconds)
            await asyncio.sleep(0.005)
        connection.close()
        return slowest

    pipe.send(asyncio.run(watch()))


@contextmanager
def in_process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[int, int]]:
    """Run a server in another process, which sends its port through a pipe; yield port and pid."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    try:
        assert ours.poll(60), "the server did not start"
        assert process.pid is not None
        yield ours.recv(), process.pid
    finally:
        process.terminate()
        process.join(10)


def run_empty(pipe: Pipe, request_type: type[BaseModel]) -> None:
    """Serve a FastAPI application whose one endpoint validates the same body and does nothing."""
    app = FastAPI()

    @app.post("/score")
    async def score(request: request_type) -> dict[str, float]:  # type: ignore[valid-type]
        return {"score": 1.0}

    config = uvicorn.Config(app, port=0, http="httptools", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    send_port(pipe, server)
    server.run()


def run_tools(pipe: Pipe) -> None:
    """Serve the tools service as in production, with a log line per request."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    configure_logging("info")
    settings = ToolsSettings(port=0)
    server = Server(create_tools_app(settings), settings)
    send_port(pipe, server)
    server.run()


def send_port(pipe: Pipe, server: uvicorn.Server) -> None:
    """Send the port as soon as the server listens."""

    def send() -> None:
        wait_until(lambda: server.started)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])

    threading.Thread(target=send, daemon=True).start()
