"""Fakes that ship with the product, and a real server for tests."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import uvicorn
from pydantic import JsonValue

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Timing

from .code.sandboxes import Job, RunResult
from .video.clip.frames import Clip
from .video.judges import Judgment

_START_SECONDS = 60.0
#: Longer than pooled connections of clients are kept, so that none is found closed.
_KEEP_ALIVE_SECONDS = 75


@dataclass(eq=False)
class FakeJudge:
    """A judge that gives every clip the same score."""

    #: The score; None to abstain.
    score: float | None = 1.0
    _: KW_ONLY
    wait_s: float = 0.0  #: seconds that every judgment takes
    error: Exception | None = None  #: an error to raise instead
    deterministic: bool = True  #: whether its judgments may be cached
    #: The sampled indices of each clip so far, in order.
    seen: list[tuple[int, ...]] = field(default_factory=list, init=False)
    cancelled: int = field(default=0, init=False)  #: number of judgments that were cancelled
    failure: str | None = field(default=None, init=False)  #: set it to make the service end
    outage = None

    @cached_property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {"judge": "fake", "score": self.score}

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        if backend_kwargs:
            raise InvalidRequest(f"the fake judge takes no options (got {sorted(backend_kwargs)})")

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        self.seen.append(clip.indices)
        try:
            await asyncio.sleep(self.wait_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return Judgment(self.score, f"fake judgment of {len(clip.frames)} frames")

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield


@dataclass(eq=False)
class FakeSandbox:
    """A sandbox in which every program prints what it reads, and answers no checks."""

    result: RunResult | None = None  #: the result of every run instead
    _: KW_ONLY
    wait_s: float = 0.0  #: seconds that every run takes
    error: Exception | None = None  #: an error to raise instead
    jobs: list[Job] = field(default_factory=list, init=False)  #: the jobs so far, in order
    counts: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {"sandbox": "fake", "isolation": "none-unsafe"}

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        self.jobs.append(job)
        for run in job.runs:
            await asyncio.sleep(self.wait_s)
            if self.error is not None:
                raise self.error
            result = self.result or RunResult(stdout=run.stdin)
            if not await asyncio.to_thread(on_result, result):
                break

    async def aclose(self) -> None:
        pass


class _QuickServer(uvicorn.Server):
    """A uvicorn server that checks every 5 ms, instead of every 100, whether to end."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=1)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextmanager
def serving(app: Callable[..., Any]) -> Iterator[str]:
    """Serve `app` on a free loopback port, from a thread; yield its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    quiet: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, http="httptools", timeout_keep_alive=_KEEP_ALIVE_SECONDS, **quiet)
    server = _QuickServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_START_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
    """Wait until `condition` returns True, checking it every 5 ms; else raise TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {seconds} s")
        time.sleep(0.005)
