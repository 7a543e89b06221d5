"""`/readyz` says whether a service has what it needs, by its work or by a probe of it."""

import asyncio
import base64
import itertools
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server.code.sandboxes.jail.isolation import find_python
from rewardfleet_server.http import app as http_app
from rewardfleet_server.testing import FakeSandbox, wait_until

from ...conftest import DATA, required
from ..code.conftest import LEVELS, HeldSandbox, served_code, stdio
from ..conftest import RedisServer
from ..processes import descendants, service_process
from .test_requests import metric

Call = Callable[[httpx.Client, int], httpx.Response]


class Need(NamedTuple):
    """Something that a service needs, and how it is taken away."""

    service: str
    arguments: tuple[str, ...]
    call: Call  #: a call that needs it, another one for each number
    #: Takes it away, given the process of the service; again if the service still has it.
    take: Callable[[int], object]
    give: Callable[[int], object]  #: gives it back
    reason: str  #: a part of what `/readyz` says
    prefix: tuple[str, ...] = ()


@contextmanager
def interpreter(level: str) -> Iterator[Need]:
    if level == "bubblewrap":
        required("bwrap")
    with tempfile.TemporaryDirectory() as path:  # which the user of the jails can read
        environment, of_jails = Path(path), Path(find_python(None).path)
        environment.chmod(0o755)
        (environment / "pyvenv.cfg").write_text(f"home = {of_jails.parent}\n")
        (environment / "bin").mkdir()
        python, away = environment / "bin/python", environment / "away"
        python.symlink_to(of_jails)

        def take(pid: int) -> None:
            if python.is_symlink():
                python.rename(away)
            for jail in descendants(pid, depth=1):
                with suppress(ProcessLookupError):
                    os.kill(jail, signal.SIGKILL)

        arguments = ("--isolation", level, "--workers", "2", "--python", str(python))
        give = lambda _: away.rename(python)  # noqa: E731
        yield Need("code", arguments, run_program, take, give, "no jail is available")


def run_program(service: httpx.Client, number: int) -> httpx.Response:
    body = {"revision": f"print({number})", "tests": stdio(("", str(number)))}
    return service.post("/score", json=body)


@contextmanager
def temporary_files(tmp_path: Path) -> Iterator[Need]:
    folder, away = tmp_path / "temporary", tmp_path / "away"
    folder.mkdir()
    clip = next((DATA / "libero/videos").glob("*.mp4"))
    body = {"video_base64": base64.b64encode(clip.read_bytes()).decode()}

    def call(service: httpx.Client, number: int) -> httpx.Response:
        return service.post("/score", json={**body, "task_text": f"task {number}"})

    take, give = lambda _: folder.exists() and folder.rename(away), lambda _: away.rename(folder)
    prefix = ("env", f"TMPDIR={folder}")
    yield Need("video", (), call, take, give, "No such file or directory", prefix)


@contextmanager
def disk(tmp_path: Path) -> Iterator[Need]:
    required("prlimit")

    def call(service: httpx.Client, number: int) -> httpx.Response:
        adapt = {"run": "r", "step": number, "success_rate": 0.5}
        return service.post("/temperatures", json={"n": 2, "adapt": adapt})

    def limit(size: str) -> Callable[[int], object]:
        command = ["prlimit", f"--fsize={size}"]
        return lambda pid: subprocess.run([*command, f"--pid={pid}"], check=True)

    arguments, reason = ("--run-state", str(tmp_path / "runs.sqlite")), "run state cannot be used"
    yield Need("episode", arguments, call, limit("1:"), limit("unlimited:"), reason)


@contextmanager
def redis(tmp_path: Path) -> Iterator[Need]:
    def call(service: httpx.Client, number: int) -> httpx.Response:
        return service.put("/budgets/r", json={"budget": float(number)})

    with RedisServer(tmp_path) as server:
        take, give = lambda _: server.stop(), lambda _: server.start()
        yield Need("tools", ("--run-state", server.url), call, take, give, "now: Redis: ")


NEEDS = {
    **{f"jails with {level}": lambda _, level=level: interpreter(level) for level in LEVELS},
    "temporary files": temporary_files,
    "a disk for run state": disk,
    "Redis": redis,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_service_is_not_ready_without_what_it_needs_until_it_has_that_again(
    name: str, tmp_path: Path
):
    """It gets no call for that, and starts jails again by itself."""
    with (
        NEEDS[name](tmp_path) as need,
        service_process(need.service, *need.arguments, prefix=need.prefix) as (process, url),
        httpx.Client(base_url=url, timeout=120, trust_env=False) as service,
    ):

        def is_ready() -> bool:
            return service.get("/readyz").status_code == 200

        def shown() -> float:
            return metric(service, f'rewardfleet_ready{{service="{need.service}"}}')

        numbers = itertools.count(1)

        def works() -> bool:
            status = need.call(service, next(numbers)).status_code
            assert status in {200, 503}
            return status == 200

        def is_taken() -> bool:
            need.take(process.pid)
            return not works()

        wait_until(is_ready)
        assert works() and shown() == 1
        wait_until(is_taken)
        wait_until(lambda: not is_ready())
        answer = service.get("/readyz").json()
        assert need.reason in answer["detail"]
        assert (answer["kind"], answer["retry_after"], shown()) == ("unavailable", 1, 0)
        need.give(process.pid)
        wait_until(is_ready)
        assert works() and shown() == 1


class Polled:
    """A code service whose sandbox is a fake, and that is asked whether it is ready."""

    def __init__(self, service: httpx.Client, sandbox: FakeSandbox) -> None:
        self.service, self.sandbox = service, sandbox

    def is_ready(self, polls: int = 16) -> set[bool]:
        """Return the answers to polls at the same time."""
        with ThreadPoolExecutor(polls) as pool:
            asked = [pool.submit(self.service.get, "/readyz") for _ in range(polls)]
        return {each.result().status_code == 200 for each in asked}

    def score(self) -> int:
        body = {"revision": f"x = {len(self.sandbox.jobs)}", "tests": stdio(("a", "a"))}
        return self.service.post("/score", json=body).status_code


@contextmanager
def polled(sandbox: FakeSandbox, patch: pytest.MonkeyPatch) -> Iterator[Polled]:
    """Serve a fake. It is never time for a probe, and each poll waits until the probe has ended."""
    patch.setattr(http_app, "_PERIOD_S", 1e9)
    patch.setattr(http_app.Readiness.check, "__defaults__", (60.0,))
    with served_code(sandbox=sandbox) as service:
        yield Polled(service.client, sandbox)


def test_polls_share_a_probe_and_scores_stand_for_one(monkeypatch: pytest.MonkeyPatch):
    with polled(FakeSandbox(), monkeypatch) as fake:
        for _ in range(3):
            assert fake.is_ready() == {True}
        assert len(fake.sandbox.jobs) == 1
        assert fake.score() == 200
        monkeypatch.setattr(http_app, "_PERIOD_S", 0.0)
        assert fake.is_ready(polls=1) == {True}
        assert len(fake.sandbox.jobs) == 2, "the score stands for a probe"
        assert fake.is_ready(polls=1) == {True}
        assert len(fake.sandbox.jobs) == 3


def test_one_failure_is_not_enough_and_a_failing_call_begins_a_probe(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(http_app, "_RETRY_S", 0.0)
    with polled(FakeSandbox(), monkeypatch) as fake:
        assert fake.is_ready() == {True}
        fake.sandbox.error = Unavailable("it is gone")
        assert fake.is_ready() == {True}
        assert len(fake.sandbox.jobs) == 1, "it is not time for a probe yet"
        assert fake.score() == 503
        for expected in (True, False):
            assert fake.is_ready(polls=1) == {expected}
        fake.sandbox.error = None
        assert fake.is_ready(polls=1) == {True}


def test_a_probe_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_app, "_RETRY_S", 0.0)
    monkeypatch.setattr(http_app, "_LIMIT_S", 0.05)
    with polled(sandbox := HeldSandbox(), monkeypatch) as fake:
        assert fake.is_ready() == {False}
        detail = fake.service.get("/readyz").json()["detail"]
        assert detail == "a probe did not end within 0.05 s"
        assert sandbox.jobs == []
        monkeypatch.setattr(http_app, "_LIMIT_S", 60.0)
        sandbox.released.set()
        wait_until(lambda: fake.is_ready() == {True})


class BusySandbox(HeldSandbox):
    """A fake that runs all programs but the probe, which fails once that is released."""

    def __init__(self) -> None:
        super().__init__()
        self.probed = threading.Event()

    async def run(self, job, on_result, timing):
        if job.program != "print(input())":
            await FakeSandbox.run(self, job, on_result, timing)
            return
        self.probed.set()
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        raise Unavailable("it has waited for too long")


def test_a_service_that_scores_while_its_probe_fails_is_ready(monkeypatch: pytest.MonkeyPatch):
    with polled(sandbox := BusySandbox(), monkeypatch) as fake, ThreadPoolExecutor(1) as pool:
        poll = pool.submit(fake.is_ready, polls=1)
        wait_until(sandbox.probed.is_set)
        assert fake.score() == 200
        sandbox.released.set()
        assert poll.result() == {True}
