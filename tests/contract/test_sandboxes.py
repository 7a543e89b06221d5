"""The contract of `Sandbox`, which every sandbox implements, including the fake."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rewardfleet.wire.score import Timing
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

from ..measure import Stopwatch
from ..server.code.fusion_server import fusion_server

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=5, wall_s=20, memory_bytes=256 << 20, output_bytes=1 << 20)
ECHO = "import sys\nsys.stdout.write(sys.stdin.read())"

#: How to start each sandbox.
BUILDERS: dict[str, Callable[..., Sandbox]] = {
    "fake": lambda **_: FakeSandbox(),
    "jail": lambda **_: build(CodeSettings(workers=1)),
    "jail with landlock": lambda **_: build(CodeSettings(workers=1, isolation="landlock")),
    "fusion": lambda fusion_url: fusion.Fusion(CodeSettings(fusion_url=fusion_url)),
}


def test_every_sandbox_is_tested_here():
    assert set(SANDBOXES) <= set(BUILDERS)


@pytest.fixture(params=BUILDERS.values(), ids=BUILDERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with fusion_server() as server:
        sandbox: Sandbox = request.param(fusion_url=server.url)
        yield sandbox
        asyncio.run(sandbox.aclose())


def job(count: int, program: str = ECHO) -> Job:
    return Job(program, [ProgramRun(stdin=str(number).encode()) for number in range(count)], LIMITS)


def outputs(sandbox: Sandbox, *jobs: Job, most: int = 99) -> list[bytes]:
    """Run jobs at the same time; return what their runs wrote, until `most` of them have ended."""
    seen: list[bytes] = []

    def on_result(result: RunResult) -> bool:
        assert threading.current_thread() is not threading.main_thread(), "off the event loop"
        seen.append(result.stdout)
        return len(seen) < most

    async def run_jobs() -> None:
        await asyncio.gather(*(sandbox.run(each, on_result, Timing()) for each in jobs))

    asyncio.run(run_jobs())
    return seen


def test_jobs_are_completed_in_order_until_on_result_returns_false(sandbox: Sandbox):
    assert sandbox.provenance["isolation"] in {"bubblewrap", "landlock", "none-unsafe", "fusion"}
    assert outputs(sandbox, job(3)) == [b"0", b"1", b"2"]
    assert outputs(sandbox, job(5), most=2) == [b"0", b"1"]
    assert sorted(outputs(sandbox, *[job(2)] * 5)) == [b"0"] * 5 + [b"1"] * 5, "at the same time"


def test_a_cancelled_job_ends_at_once(sandbox: Sandbox):
    """Whatever its program does. The next job gets its own results only."""
    if isinstance(sandbox, FakeSandbox):
        sandbox.wait_s = 0.2

    async def run_and_cancel() -> None:
        limits = replace(LIMITS, cpu_s=60, wall_s=120)
        endless = Job("while True: pass", [ProgramRun()] * 100, limits)
        running = asyncio.ensure_future(sandbox.run(endless, lambda _: True, Timing()))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        seen: list[bytes] = []
        await sandbox.run(job(2), lambda result: not seen.append(result.stdout), Timing())
        assert seen == [b"0", b"1"]

    watch = Stopwatch()
    asyncio.run(run_and_cancel())
    assert watch.seconds < 30
