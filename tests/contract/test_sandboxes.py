"""What every sandbox does alike, the fake included."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rewardfleet_server.code.sandboxes import (
    SANDBOXES,
    Job,
    ProgramRun,
    RunLimits,
    RunResult,
    Sandbox,
    fusion,
)
from rewardfleet_server.code.sandboxes.jail.pool import build
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeSandbox

from ..server.code.fusion_server import fusion_server

pytestmark = pytest.mark.slow

BOUNDS = RunLimits(cpu_s=5, wall_s=20, memory_bytes=256 << 20, output_bytes=1 << 20)
ECHO = "import sys\nsys.stdout.write(sys.stdin.read())"

#: How each sandbox is made; a sandbox of the table must be here.
MAKERS: dict[str, Callable[..., Sandbox]] = {
    "fake": lambda **_: FakeSandbox(),
    "jail": lambda **_: build(CodeSettings(workers=1)),
    "jail at level 2": lambda **_: build(CodeSettings(workers=1, isolation="landlock")),
    "fusion": lambda fusion_url: fusion.build(
        CodeSettings(sandbox="fusion", fusion_url=fusion_url)
    ),
}


def test_every_sandbox_keeps_the_contract():
    assert set(SANDBOXES) <= set(MAKERS)


@pytest.fixture(params=MAKERS.values(), ids=MAKERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with fusion_server() as server:
        made = request.param(fusion_url=server.url)
        yield made
        asyncio.run(made.aclose())


def job(count: int, program: str = ECHO) -> Job:
    return Job(program, [ProgramRun(stdin=str(number).encode()) for number in range(count)], BOUNDS)


def test_it_says_how_programs_are_kept_in(sandbox: Sandbox):
    assert sandbox.provenance["isolation"] in {"bubblewrap", "landlock", "none-unsafe", "fusion"}


def test_the_runs_are_made_in_order_and_looked_at_off_the_event_loop(sandbox: Sandbox):
    seen: list[tuple[bytes, bool]] = []

    def on_result(ended: RunResult) -> bool:
        seen.append((ended.stdout, threading.current_thread() is threading.main_thread()))
        return True

    waited = asyncio.run(sandbox.run(job(3), on_result))
    assert seen == [(b"0", False), (b"1", False), (b"2", False)]
    assert waited >= 0


def test_it_ends_when_it_is_told_to(sandbox: Sandbox):
    seen: list[bytes] = []

    def on_result(ended: RunResult) -> bool:
        seen.append(ended.stdout)
        return len(seen) < 2

    asyncio.run(sandbox.run(job(5), on_result))
    assert seen == [b"0", b"1"]


def test_jobs_at_once_are_all_done(sandbox: Sandbox):
    seen: list[bytes] = []

    def on_result(ended: RunResult) -> bool:
        seen.append(ended.stdout)
        return True

    async def several() -> None:
        await asyncio.gather(*(sandbox.run(job(2), on_result) for _ in range(5)))

    asyncio.run(several())
    assert sorted(seen) == [b"0"] * 5 + [b"1"] * 5


def test_a_job_that_is_cancelled_makes_room(sandbox: Sandbox):
    """At once, whatever its program does; and the next one's runs are its own."""
    if isinstance(sandbox, FakeSandbox):
        sandbox._wait_s = 0.2
    seen: list[bytes] = []

    async def cancelled() -> None:
        endless = Job("while True: pass", [ProgramRun()] * 100, BOUNDS)
        running = asyncio.ensure_future(sandbox.run(endless, lambda _: True))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        def on_result(ended: RunResult) -> bool:
            seen.append(ended.stdout)
            return True

        await sandbox.run(job(2), on_result)

    started = time.monotonic()
    asyncio.run(cancelled())
    assert seen == [b"0", b"1"]
    assert time.monotonic() - started < 3
