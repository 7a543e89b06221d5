"""The process of a judge that the user provides: hung, dying, printing, and ended."""

import asyncio
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.custom_judge import process as judge_process
from rewardfleet_server.video.custom_judge.process import CustomJudge
from rewardfleet_server.video.judges.loading import load_judges
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import image_base64, served_with
from ..http.test_requests import metric
from ..processes import is_zombie
from ..test_serve import FailingJudge

#: Calls that a judge without coroutines works on at the same time.
THREADS = min(32, (os.cpu_count() or 1) + 4)
#: Seconds after which callers give up: calls reach the judge before, also on a machine that pauses.
GIVE_UP = 6

MODULE = r"""
import asyncio, ctypes, os, subprocess, sys, threading, time
from pathlib import Path

FOLDER = Path(__file__).parent
if (FOLDER / "broken").exists():
    raise RuntimeError("the checkpoint is gone")
with (FOLDER / "starts").open("a") as file:
    file.write(f"{os.getpid()}\n")
while (FOLDER / "hanging").exists():
    time.sleep(0.01)
barrier = threading.Barrier(THREADS)

def act(text, options):
    with (FOLDER / "calls").open("a") as file:
        file.write("call\n")
    if text == "hang":
        threading.Event().wait()
    elif text == "hold the interpreter":
        ctypes.PyDLL(None).sleep(1000)
    elif text == "wait for release":
        while not (FOLDER / "release").exists():
            time.sleep(0.01)
    elif text == "meet":
        barrier.wait(60)
    elif text == "exit":
        raise SystemExit(3)
    elif text == "interrupt":
        raise KeyboardInterrupt
    elif text == "end":
        os._exit(7)
    elif text == "start":
        return 0.5, str(subprocess.Popen(["sleep", "1000"], close_fds=False).pid)
    elif text == "crash":
        ctypes.string_at(0)
    elif text == "print":
        print('{"id": 1, "score": 1.0}')
        os.write(1, b"\0\xff\n 10%\r 20%\r\nlong " + 100_000 * b"x" + b"\n")
        os.write(2, b"to standard error\n")
        assert sys.stdin.read() == ""
    elif text == "overloaded":
        from rewardfleet.wire.errors import Overloaded
        raise Overloaded("no GPU is free", retry_after=7)
    elif text == "large":
        return 0.5, options["n"] * "é"
    elif text == "surrogate":
        return 0.5, "\ud800"
    return 0.5, str(os.getpid())

class Judge:
    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        return act(task_text, backend_kwargs)

class AsyncJudge:
    async def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        if task_text == "wait":
            act("", {})
            await asyncio.sleep(1000)
        return act(task_text, backend_kwargs)

build, build_async = lambda args: Judge(), lambda args: AsyncJudge()
""".replace("THREADS", str(THREADS))


class Folder:
    """Where the judge's module is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = f"scripted_{os.getpid()}_{path.name}".replace("-", "_")
        (path / f"{self.module}.py").write_text(MODULE)

    @property
    def starts(self) -> list[int]:
        """The processes in which the module was imported."""
        return [int(line) for line in (self.path / "starts").read_text().split()]

    @property
    def calls(self) -> list[str]:
        """One line for each call that a judge has begun."""
        calls = self.path / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def settings(self, factory: str = "build", **settings: object) -> VideoSettings:
        return VideoSettings(
            backend=["mine"], custom_backend_factory=f"{self.module}:{factory}", **settings
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.syspath_prepend(tmp_path)
    return Folder(tmp_path)


@pytest.fixture
def client(folder: Folder) -> Iterator[httpx.Client]:
    with served_with(folder.settings()) as client:
        yield client


def post(
    client: httpx.Client, task: str = "go", timeout_s: float = 20, **options: object
) -> httpx.Response:
    body = {"task_text": task, "frames_base64": [image_base64()], "backend_kwargs": options}
    return client.post("/score", json=body, headers={"X-Request-Timeout": str(timeout_s)})


@contextmanager
def at_work(
    folder: Folder, client: httpx.Client, task: str, count: int = 1, **options: object
) -> Iterator[list[Future[httpx.Response]]]:
    """Send calls, and wait until the judge works on them, or on as many as it can."""
    most = 1 if task == "hold the interpreter" else THREADS
    begun = len(folder.calls) + min(count, most)
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(post, client, task, **options) for _ in range(count)]
        wait_until(lambda: len(folder.calls) >= begun)
        yield calls


def restarts(client: httpx.Client) -> float:
    return metric(client, 'rewardfleet_judge_restarts_total{backend="mine"}')


def abandoned(client: httpx.Client) -> float:
    return metric(client, 'rewardfleet_judge_abandoned_calls{backend="mine"}')


def in_flight(client: httpx.Client) -> float:
    return metric(client, 'rewardfleet_in_flight_items{service="video"}')


def is_ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def kind_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["kind"]


def test_the_factory_runs_once_in_another_process_and_calls_run_in_its_threads(client, folder):
    with ThreadPoolExecutor(THREADS) as pool:
        calls = [pool.submit(post, client, "meet") for _ in range(THREADS)]
    answers = [call.result().json() for call in calls]
    assert [answer["score"] for answer in answers] == [0.5] * THREADS
    [process] = folder.starts
    assert {answer["model_output"] for answer in answers} == {str(process)} != {str(os.getpid())}


def test_what_the_judge_prints_is_logged_and_does_not_disturb_its_answers(client, caplog):
    with caplog.at_level(logging.INFO, "rewardfleet_server"):
        assert post(client, "print").json()["score"] == 0.5
        wait_until(lambda: "judge mine: to standard error" in caplog.messages)
    assert {'judge mine: {"id": 1, "score": 1.0}', "judge mine:  20%"} <= {*caplog.messages}


def test_a_text_may_be_large_or_not_valid_in_utf_8(client):
    assert post(client, "large", n=1_000_000).json()["model_output"] == 1_000_000 * "é"
    too_large = post(client, "large", n=3_000_000)
    assert kind_of(too_large) == (502, "backend_failed")
    assert "60000" in too_large.json()["detail"] and "bytes" in too_large.json()["detail"]
    assert post(client, "surrogate").json()["model_output"] == "?"


@pytest.mark.parametrize("factory", ["build", "build_async"])
@pytest.mark.parametrize("task", ["exit", "interrupt"])
def test_a_judge_that_raises_system_exit_fails_this_call_only(folder, factory, task):
    with served_with(folder.settings(factory)) as client:
        answer = post(client, task)
        assert kind_of(answer) == (502, "backend_failed")
        name = {"exit": "SystemExit: 3", "interrupt": "KeyboardInterrupt"}[task]
        assert f"judge mine failed: {name}" in answer.json()["detail"]
        failure = post(client, "overloaded")  # a failure of services, which a judge may raise
        assert (failure.status_code, failure.json()["detail"]) == (429, "no GPU is free")
        assert failure.headers["retry-after"] == "7"
        assert post(client).json()["model_output"] == str(folder.starts[0])
        assert restarts(client) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "reason"), [("end", "ended with status 7"), ("crash", "was ended by SIGSEGV")]
)
def test_the_calls_of_a_judge_that_dies_are_failures_and_it_is_started_again(
    client, folder, task, reason
):
    helper = int(post(client, "start").json()["model_output"])  # a process that it starts
    assert not is_zombie(helper)
    with at_work(folder, client, "hang", 2) as others:
        answers = [post(client, task), *(other.result() for other in others)]
    for answer in answers:
        assert kind_of(answer) == (502, "backend_failed")
        assert answer.json()["detail"] == f"judge mine died: its process {reason}"
    wait_until(lambda: is_ready(client))
    first, second = folder.starts
    assert post(client).json()["model_output"] == str(second)
    assert restarts(client) == 1
    wait_until(lambda: is_zombie(first) and is_zombie(helper))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "reason"),
    [("broken", "RuntimeError: the checkpoint is gone"), ("hanging", "not ready within 5 s")],
)
def test_a_judge_that_cannot_be_started_again_is_not_ready_until_it_can(
    folder, monkeypatch, state, reason
):
    """If its start hangs, it is killed."""
    monkeypatch.setattr(judge_process, "_RESTART_FACTOR", 0)
    monkeypatch.setattr(judge_process, "_MIN_RESTART_SECONDS", 5.0)
    with served_with(folder.settings()) as client:
        (folder.path / state).touch()
        post(client, "end")
        wait_until(lambda: reason in client.get("/readyz").json().get("detail", ""))
        answer = post(client)
        assert kind_of(answer) == (503, "unavailable")
        assert answer.json()["retryable"] and answer.headers["retry-after"] == "1"
        assert is_zombie(folder.starts[:2][-1])
        (folder.path / state).unlink()
        wait_until(lambda: is_ready(client))
        assert post(client).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("task", ["hang", "hold the interpreter"])
def test_a_judge_whose_threads_all_hang_is_killed_and_started_again(
    client, folder, task, monkeypatch
):
    kill, is_checked = CustomJudge._kill_hung, threading.Event()

    def kill_when_checked(process: CustomJudge) -> None:
        if is_checked.is_set():
            kill(process)
        else:
            asyncio.get_running_loop().call_later(0.05, kill_when_checked, process)

    monkeypatch.setattr(CustomJudge, "_kill_hung", kill_when_checked)
    with at_work(folder, client, task, THREADS, timeout_s=GIVE_UP) as calls:
        assert is_ready(client), "busy"
        assert {call.result().status_code for call in calls} == {504}
    wait_until(lambda: not is_ready(client))
    problem = client.get("/readyz").json()
    assert f"judge mine hangs: {THREADS} calls are at work" in problem["detail"]
    refused = post(client)
    assert kind_of(refused) == (503, "unavailable")
    is_checked.set()
    wait_until(lambda: is_ready(client))
    assert post(client).status_code == 200
    assert (restarts(client), abandoned(client)) == (1, 0)
    assert is_zombie(folder.starts[0])


@pytest.mark.slow
def test_calls_that_wait_for_a_thread_of_a_hung_judge_are_unavailable(folder, client):
    with at_work(folder, client, "hang", THREADS, timeout_s=GIVE_UP):
        assert kind_of(post(client)) == (503, "unavailable")


@pytest.mark.slow
def test_a_judge_that_answers_abandoned_calls_goes_on(client, folder, monkeypatch):
    """A trainer that ends leaves a full pool; the model is not loaded again for it."""
    monkeypatch.setattr(judge_process, "_MIN_PATIENCE", 30)
    with at_work(folder, client, "wait for release", THREADS, timeout_s=GIVE_UP) as calls:
        assert {call.result().status_code for call in calls} == {504}
    assert abandoned(client) == THREADS
    assert not is_ready(client)
    (folder.path / "release").touch()
    wait_until(lambda: is_ready(client))
    wait_until(lambda: abandoned(client) == 0)
    assert post(client).json()["model_output"] == str(folder.starts[0])
    assert restarts(client) == 0


def test_calls_whose_callers_disconnect_are_abandoned(client, folder):
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    body = json.dumps({"task_text": "hang", "frames_base64": [image_base64()]})
    connection.request("POST", "/score", body, {"content-type": "application/json"})
    wait_until(lambda: len(folder.calls) == 1)
    connection.close()
    wait_until(lambda: abandoned(client) == 1)
    assert is_ready(client) and post(client).status_code == 200


@pytest.mark.slow
def test_abandoned_calls_of_coroutines_are_cancelled(folder, monkeypatch):
    monkeypatch.setattr(judge_process, "_MIN_PATIENCE", 30)
    with served_with(folder.settings("build_async")) as client:
        with at_work(folder, client, "wait", 2 * THREADS, timeout_s=GIVE_UP) as calls:
            assert post(client).status_code == 200
            assert {call.result().status_code for call in calls} == {504}
        wait_until(lambda: abandoned(client) == 0)
        assert is_ready(client)
        assert post(client).json()["model_output"] == str(folder.starts[0])


@pytest.mark.slow
def test_other_calls_at_a_judge_that_is_killed_are_unavailable(folder):
    with served_with(folder.settings("build_async")) as client:
        with at_work(folder, client, "wait", timeout_s=50) as [other]:
            with ThreadPoolExecutor(THREADS) as pool:  # the first of them stops the event loop
                pool.map(lambda _: post(client, "hang", timeout_s=GIVE_UP), range(THREADS))
            answer = other.result()
        assert kind_of(answer) == (503, "unavailable")
        assert answer.json()["retryable"]
        assert "was killed: it hung" in answer.json()["detail"]
        wait_until(lambda: is_ready(client))
        assert (post(client).status_code, restarts(client)) == (200, 1)


async def test_its_process_ends_if_another_judge_fails_at_startup(folder):
    settings = folder.settings()
    app = create_app(settings, {**load_judges(settings), "second": FailingJudge()})
    with pytest.raises(RuntimeError, match="no warm-up"):
        async with app.service.lifespan():
            raise AssertionError("it has started")
    # It is killed, and at most 2 s are spent on waiting for its end.
    await asyncio.to_thread(wait_until, lambda: is_zombie(folder.starts[0]))


def test_nothing_is_started_if_another_judge_cannot_work_with_the_settings(folder):
    with pytest.raises(ValueError, match="openai"):
        load_judges(folder.settings().model_copy(update={"backend": ["mine", "openai"]}))
    assert not (folder.path / "starts").exists()


@pytest.fixture
def start(folder: Folder) -> Iterator[Callable[..., tuple[subprocess.Popen[str], httpx.Client]]]:
    """Start the real command in the folder of the judge's module."""
    command = [str(Path(sys.executable).with_name("rewardfleet")), "serve", "video", "--port=0"]
    command += ["--backend=mine", f"--custom-backend-factory={folder.module}:build"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    started = []

    def start(*flags: str) -> tuple[subprocess.Popen[str], httpx.Client]:
        process = subprocess.Popen(
            [*command, *flags], cwd=folder.path, env=environment, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        for line in process.stderr:
            message = json.loads(line)["message"]
            if message.startswith("serving "):
                url = message.split(" on ")[1]
                return process, httpx.Client(base_url=url, timeout=60, trust_env=False)
        raise AssertionError("the service ended before it listened")

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_service_with_a_hung_judge_exits_after_its_shutdown_timeout(start, folder):
    process, client = start("--set=shutdown_timeout_s=1")
    with client, at_work(folder, client, "hang", THREADS + 2) as calls:
        wait_until(lambda: in_flight(client) == THREADS + 2)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert {call.result().status_code for call in calls} == {503}
        assert process.wait(60) == 0
        assert time.monotonic() - begun >= 1
    wait_until(lambda: is_zombie(folder.starts[0]))
    assert all(json.loads(line) for line in process.stderr), "the log is JSON"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["hang", "hold the interpreter"])
def test_the_judge_ends_with_a_service_that_is_killed(start, folder, task):
    process, client = start()
    with client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(post, client, task)
        wait_until(lambda: len(folder.calls) == 1)
        [judge] = folder.starts
        assert not is_zombie(judge)
        process.kill()
        wait_until(lambda: is_zombie(judge))
        assert isinstance(call.exception(), httpx.TransportError)


#: Starts the video service in a process one of whose threads never ends.
HUNG_THREADS = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

class Judge(FakeJudge):
    async def judge(self, *arguments):
        await asyncio.to_thread(threading.Event().wait)

settings = VideoSettings(port=0, shutdown_timeout_s=0.5)
configure_logging("info")
ThreadPoolExecutor(thread_name_prefix="stuck").submit(threading.Event().wait)
Server(create_app(settings, {"fake": Judge()}), settings).run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_read", [True, False])
def test_a_service_whose_own_threads_hang_exits_after_its_shutdown_timeout(is_read: bool):
    """Also if nobody reads its log."""
    command = [sys.executable, "-c", HUNG_THREADS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads(process.stderr.readline())["message"].split(" on ")[1]
            with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
                body = {"task_text": "go", "frames_base64": [image_base64()]}
                with ThreadPoolExecutor(1) as pool:
                    call = pool.submit(client.post, "/score", json=body)
                    wait_until(lambda: in_flight(client) == 1)
                    begun = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    assert call.result().status_code == 503
            if not is_read:
                log = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
                with suppress(BlockingIOError):
                    while True:
                        os.write(log, b" " * 4096)
                os.close(log)
            assert process.wait(60) == 1
            assert time.monotonic() - begun >= 0.5
            if is_read:
                assert "threads are at work: MainThread, stuck_0" in process.stderr.read()
        finally:
            process.kill()
