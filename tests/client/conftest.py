"""Replicas with scripted answers, on real sockets."""

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from rewardfleet import RewardFleet
from rewardfleet.http import replicas
from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeSandbox, serving


@pytest.fixture(autouse=True)
def _quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(replicas, "_MAX_BACKOFF_SECONDS", 0.05)


@pytest.fixture(scope="module")
def code_url() -> Iterator[str]:
    """Serve the code service with a fake sandbox."""
    with serving(create_code_app(CodeSettings(), FakeSandbox())) as url:
        yield url


@dataclass(frozen=True)
class Received:
    """A request as a replica received it, and when."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def items(self) -> list[dict[str, object]]:
        content = json.loads(self.body)
        return content["items"] if self.path == "/score/batch" else [content]


@dataclass(frozen=True)
class Reply:
    """An answer, and a script that always gives it; one that returns None closes the connection.

    It has the id of its request, unless `headers` has another `X-Request-Id`; "" means none.
    `then` is a second one, for which nobody has asked. A `body` of bytes is sent as it is.
    """

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    then: "Reply | None" = None

    async def __call__(self, _: Received) -> "Reply":
        return self

    def encode(self, request_id: str) -> bytes:
        content = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = {"X-Request-Id": request_id, "Content-Length": str(len(content))} | self.headers
        lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value]
        head = f"HTTP/1.1 {self.status} X\r\n{''.join(lines)}\r\n"
        return head.encode() + content + (self.then.encode(request_id) if self.then else b"")


Script = Callable[[Received], Awaitable[Reply | None]]


def scored(item: dict[str, object]) -> dict[str, object]:
    """A score that identifies its item: the number at the end of the task."""
    return {"score": int(str(item["task_text"]).split()[-1]) / 1e6, "status": "ok"}


def refusal(
    status: int, kind: str, retry_after: float | None = None, headers: dict[str, str] | None = None
) -> Reply:
    problem = {"title": kind, "status": status, "detail": "scripted", "kind": kind}
    return Reply(status, {**problem, "retryable": True, "retry_after": retry_after}, headers or {})


async def healthy(request: Received) -> Reply:
    """Answer as a healthy service does."""
    if request.path == "/score/batch":
        return Reply(body={"results": [scored(item) for item in request.items]})
    if request.path == "/score":
        return Reply(body=scored(request.items[0]))
    return Reply(body={"status": "ready"})


def holding(release: asyncio.Event, script: Script = healthy, tasks: str = "") -> Script:
    """Answer requests whose task ends so once `release` is set."""

    async def held(request: Received) -> Reply | None:
        if str(request.items[0].get("task_text", "")).endswith(tasks):
            await release.wait()
        return await script(request)

    return held


async def score_number(fleet: RewardFleet, number: int) -> int:
    """Return the number of a task, which is its score in millionths."""
    score = await fleet.video.score(f"task {number}", "clip.mp4")
    return round(score.score * 1e6)


class ScriptedReplica:
    """A replica; `script` may be changed at any time."""

    def __init__(self) -> None:
        self.script: Script = healthy
        self.received: list[Received] = []
        self.connections = 0
        self.max_connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        self.max_connections = max(self.max_connections, self.connections)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Received(start.split(" ")[1], headers, body, asyncio.get_running_loop().time())
        self.received.append(request)
        reply = await self.script(request)
        if reply is None:
            return False
        writer.write(reply.encode(headers["x-request-id"]))
        await writer.drain()
        return True


@pytest.fixture
async def replica() -> AsyncIterator[Callable[..., Awaitable[ScriptedReplica]]]:
    """Start a replica that answers with `script`."""
    async with AsyncExitStack() as stack:

        async def start(script: Script = healthy) -> ScriptedReplica:
            scripted = ScriptedReplica()
            scripted.script = script
            await scripted.start()
            stack.push_async_callback(scripted.stop)
            return scripted

        yield start


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Let the event loop run until `condition` is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def answering(response: bytes) -> AbstractContextManager[str]:
    """Serve the same bytes in answer to every request; yield the URL."""
    return handling(lambda connection: connection.sendall(response))


@contextmanager
def handling(handle: Callable[[socket.socket], None], *, waits: bool = False) -> Iterator[str]:
    """Call a function with each connection that has sent something; yield the URL.

    Args:
        handle: The function.
        waits: Whether all calls have ended at the end. A connection that the client abandoned may
            never send anything.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            handle(self.request)

    class Server(socketserver.ThreadingTCPServer):
        block_on_close = waits
        daemon_threads = not waits

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
