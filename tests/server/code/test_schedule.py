"""Which programs have a core, and what their time limits leave out."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rewardfleet.wire.code import CodeTiming
from rewardfleet_server.code.running.doctor import checks
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits
from rewardfleet_server.code.sandboxes.jail import pool
from rewardfleet_server.code.sandboxes.jail.guest import processes
from rewardfleet_server.code.sandboxes.jail.guest.descriptors import LONG_S
from rewardfleet_server.code.sandboxes.jail.pool import JailPool
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import wait_until

from .conftest import LEVELS, LIMITS, Service, asserts, programs, served_code, stdio

pytestmark = pytest.mark.slow

#: Uses so many seconds of CPU time.
COMPUTES = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


@contextmanager
def ended_at_exit(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    # In a session of its own: many kernels give each session the same share of the cores.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def busy_cores(count: int) -> Iterator[list[int]]:
    """Compute in so many processes for the duration of the block; yield their ids."""
    command = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        yield [stack.enter_context(ended_at_exit(command)).pid for _ in range(count)]


# Short submissions come first


LONG = {
    "computes": COMPUTES.format(10 * LONG_S) + "print({})",
    "sleeps": "import time\ntime.sleep(2)\nprint({})",
}


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
def test_a_short_program_does_not_wait_for_long_ones(long: str):
    with served_code(workers=1) as service, ThreadPoolExecutor(5) as threads:
        before = len(programs())
        tasks = [(long.format(n), stdio(("", f"{n}"))) for n in range(5)]
        running = [threads.submit(service.score, *each) for each in tasks]
        wait_until(lambda: len(programs()) > before + 1)  # several have begun, so one is long
        assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"
        assert not all(each.done() for each in running)
        scores = [each.result() for each in running]
    assert [each["score"] for each in scores] == [1.0] * 5
    assert max(each["timing_ms"]["queue"] for each in scores) > 500  # it has waited for others


async def test_a_long_program_begins_after_short_ones():
    """Even before it has used any CPU time."""
    jails = pool.build(CodeSettings(workers=1))
    ended: list[str] = []

    async def run(program: str, name: str) -> None:
        limits = RunLimits(60, 60, 2**28, 2**20)
        job = Job(program, [ProgramRun()], limits)
        await jails.run(job, lambda _: True, CodeTiming())
        ended.append(name)

    try:
        running = asyncio.create_task(run(COMPUTES.format(10 * LONG_S), "running"))
        while not any(turn.is_long for turn in jails._schedule._begun):
            await asyncio.sleep(0.001)
        await asyncio.gather(run("#" * 20_000, "long"), run("", "short"), running)
    finally:
        await jails.aclose()
    assert ended.index("short") < ended.index("long")


# Verdicts on a busy machine


def timed(service: Service, number: int, share: float) -> str:
    """Return the verdict on a program that takes a share of one of its limits."""
    if number % 3 == 0:
        limits = {**LIMITS, "wall_s": 1}
        return service.verdict(f"import time\ntime.sleep({share})", stdio(("", "")), limits=limits)
    limits = {**LIMITS, "cpu_s": 0.2}
    source = COMPUTES.format(0.2 * share - 0.005)  # what it has used before that
    if number % 3 == 1:
        return service.verdict(f"# {number}\n{source}", stdio(("", "")), limits=limits)
    lines = source.replace("\n", "\n    ")
    program = f"def f():\n    {lines}\n    return {number}"
    return service.verdict(program, asserts(f"assert f() in ({number},)"), limits=limits)


@pytest.mark.full
@pytest.mark.serial
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", LEVELS)
def test_load_changes_no_verdict(level: str):
    """Half of 200 programs take 0.5 to 0.7 of a limit, half 1.5 to 2 times as much as it allows."""
    shares = [0.5 + n / 1000 if n % 2 else 1.5 + n / 400 for n in range(200)]
    expected = ["accepted" if share < 1 else "time_limit" for share in shares]
    for load in (0, 16):
        with busy_cores(load), served_code(level) as service, ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda n: timed(service, n, shares[n]), range(200)))
        assert found == expected, load


# What the kernel counts


def test_waiting_for_a_core_and_sleeping_are_distinguished():
    core = min(os.sched_getaffinity(0))
    sleeps = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    with busy_cores(3) as pids, ended_at_exit(sleeps) as sleeper:
        assert sleeper.stdout is not None and sleeper.stdout.read(1) == b"\n"
        for pid in pids:
            os.sched_setaffinity(pid, {core})
        waiting, asleep = (processes.Process(pid) for pid in (pids[0], sleeper.pid))
        wait_until(lambda: not asleep.is_ready())  # once it has had a core to fall asleep
        for each in (waiting, asleep):
            each.delay_s()
        end = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > end)
        assert waiting.delay_s() > 0.05
        assert waiting.is_ready() and not asleep.is_ready()
        assert asleep.delay_s() < 0.05
        for each in (waiting, asleep):
            os.close(each.descriptor)


def test_a_kernel_that_counts_no_waits_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert processes.counts_delays()
    for line, counts in (("", False), ("5 0 0\n", False), ("5 7 3\n", True)):
        thread = tmp_path / str(os.getpid()) / "task" / "1"
        thread.mkdir(parents=True, exist_ok=True)
        (thread / "schedstat").unlink(missing_ok=True)
        if line:
            (thread / "schedstat").write_text(line)
        with monkeypatch.context() as patch:
            patch.setattr(processes, "PROC", str(tmp_path))
            assert processes.counts_delays() is counts

    start = JailPool.__init__

    def without_counts(pool: JailPool, *args, **kwargs) -> None:
        start(pool, *args, **kwargs)
        pool.counts_delays = False

    monkeypatch.setattr(JailPool, "__init__", without_counts)
    found = [each for each in checks(CodeSettings()) if "wait for a core" in each.what]
    assert [each.status for each in found] == ["note"]
    assert "CONFIG_SCHED_INFO" in found[0].fix


def test_wall_time_leaves_out_pauses():
    run = processes.Run([], None, 1)
    run._counts_from -= 10
    run.leave_out(4)
    run.leave_out_delay(slept_s=3.0, asked_s=1.0)  # two seconds late: the machine was paused
    run.leave_out_delay(slept_s=1.1, asked_s=1.0)  # late as usual
    assert 3.9 < run.wall_s < 5.5
