"""Replicas that answer by a script, on real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from rewardfleet import replicas


@pytest.fixture(autouse=True)
def _quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(replicas, "MAX_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(replicas, "EJECTION_SECONDS", 0.05)


@dataclass(frozen=True)
class Asked:
    """A request as it arrived, and when."""

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
    """What is answered; None instead of one cuts the connection."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[Asked], Awaitable[Reply | None]]


def scored(item: dict[str, object]) -> dict[str, object]:
    """A score that is told from all others: the number at the end of the task."""
    return {"score": int(str(item["task_text"]).split()[-1]) / 1e6, "status": "ok"}


def problem(status: int, kind: str, retry_after: float | None = None) -> dict[str, object]:
    fields = {"title": kind, "status": status, "detail": "scripted", "kind": kind}
    return {**fields, "retryable": True, "retry_after": retry_after}


async def well(asked: Asked) -> Reply:
    """Answer as a healthy service does."""
    if asked.path == "/score/batch":
        return Reply(body={"results": [scored(item) for item in asked.items]})
    if asked.path == "/score":
        return Reply(body=scored(asked.items[0]))
    return Reply(body={"status": "ready"})


class Scripted:
    """A replica. `script` may be changed at any time."""

    def __init__(self) -> None:
        self.script: Script = well
        self.asked: list[Asked] = []  #: all requests but probes
        self.probes = 0
        self.connections = 0
        self.most_connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and cut all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        self.most_connections = max(self.most_connections, self.connections)
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
        asked = Asked(start.split(" ")[1], headers, body, asyncio.get_running_loop().time())
        if asked.path == "/readyz":
            self.probes += 1
        else:
            self.asked.append(asked)
        reply = await self.script(asked)
        if reply is None:
            return False
        content = json.dumps(reply.body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        head = f"HTTP/1.1 {reply.status} X\r\nContent-Length: {len(content)}\r\n{more}\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        return True


@pytest.fixture
async def replica() -> AsyncIterator[Callable[..., Awaitable[Scripted]]]:
    """Start a replica that answers by `script`."""
    async with AsyncExitStack() as stack:

        async def start(script: Script = well) -> Scripted:
            scripted = Scripted()
            scripted.script = script
            await scripted.start()
            stack.push_async_callback(scripted.stop)
            return scripted

        yield start


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Let the event loop run until `condition` is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
