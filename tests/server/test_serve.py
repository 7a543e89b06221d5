"""The real command in a real process: how it starts and stops."""

import base64
import json
import os
import signal
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.judges import Judge
from rewardfleet_server.video.judges.loading import find_judge
from rewardfleet_server.video.judges.reference import ReferenceJudge
from rewardfleet_server.video.references.matcher import Library
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import LONG_CLIP, image_base64
from ..measure import Stopwatch
from .processes import process, url_in_log

#: Starts the video service with a judge that waits as many seconds as the first argument says.
PROGRAM = """
import json, sys
from rewardfleet_server import serve
from rewardfleet_server.serve import Server
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings
settings = VideoSettings(port=0, **json.loads(sys.argv[2]))
configure_logging("info")
serve._EXIT_SECONDS = 120  # it ends by itself, also on a busy machine
Server(create_app(settings, {"fake": FakeJudge(wait_s=float(sys.argv[1]))}), settings).run()
"""


@contextmanager
def slow_service(wait_s: float, **settings: object):
    program = [sys.executable, "-c", PROGRAM, str(wait_s), json.dumps(settings)]
    with (
        process(*program) as started,
        httpx.Client(base_url=url_in_log(started), timeout=30, trust_env=False) as client,
    ):
        yield started, client


def request(task: str) -> dict[str, object]:
    return {"task_text": task, "frames_base64": [image_base64()]}


@pytest.mark.slow
def test_sigterm_finishes_requests_in_flight_refuses_new_ones_and_exits_0():
    with slow_service(8) as (started, client), ThreadPoolExecutor(1) as pool:
        inside = pool.submit(client.post, "/score", json=request("inside"))
        _wait_for_in_flight(client)
        started.send_signal(signal.SIGTERM)
        _wait_until_not_ready(client)
        refused = client.post("/score", json=request("new"))
        assert refused.status_code == 503
        assert (refused.json()["kind"], refused.json()["retryable"]) == ("unavailable", True)
        assert refused.headers["retry-after"]
        assert client.get("/healthz").status_code == 200
        assert inside.result().json()["status"] == "ok"
        assert started.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("timeout_s", "signals"), [(0.3, 1), (30, 2)])
def test_requests_that_outlast_the_shutdown_timeout_or_a_second_signal_get_503(timeout_s, signals):
    with (
        slow_service(60, shutdown_timeout_s=timeout_s) as (started, client),
        ThreadPoolExecutor(1) as pool,
    ):
        inside = pool.submit(client.post, "/score", json=request("inside"))
        _wait_for_in_flight(client)
        watch = Stopwatch()
        started.send_signal(signal.SIGTERM)
        if signals == 2:
            _wait_until_not_ready(client)
            started.send_signal(signal.SIGTERM)
        assert inside.result().status_code == 503
        assert inside.result().json()["kind"] == "unavailable"
        assert started.wait(20) == 0
        assert watch.seconds < 20


def _wait_for_in_flight(client: httpx.Client) -> None:
    in_flight = 'rewardfleet_admitted_requests{service="video"} 1.0'
    wait_until(lambda: in_flight in client.get("/metrics").text)


def _wait_until_not_ready(client: httpx.Client) -> None:
    wait_until(lambda: client.get("/readyz").status_code == 503)


@pytest.mark.slow
def test_the_command_scores_a_clip_for_the_shell_and_logs_json(tmp_path: Path):
    """`rewardfleet serve video`, then `rewardfleet score video CLIP TASK`."""
    command = str(Path(sys.executable).parent / "rewardfleet")
    with process(command, "serve", "video", "--port", "0") as started:
        url = url_in_log(started)
        environment = {**os.environ, "REWARDFLEET_VIDEO_URL": url}
        scoring = [command, "score", "video", str(LONG_CLIP), "fly to the moon"]
        score = subprocess.run(scoring, env=environment, stdout=subprocess.PIPE, check=False)
        image = with_repeated_chunk(base64.b64decode(image_base64(kind=".png")))
        body = {"task_text": "x", "frames_base64": [base64.b64encode(image).decode()]}
        httpx.post(f"{url}/score", json=body, trust_env=False, timeout=60)
        lines = map(json.loads, started.stderr)
        log = []
        # A thread logs what the library wrote.
        while not any("libpng" in line["message"] for line in log):
            log.append(next(lines))
        started.send_signal(signal.SIGTERM)
        log += lines
    assert score.returncode == 3, "abstained: there are no references for this task"
    answer = json.loads(score.stdout)
    assert (answer["score"], answer["status"]) == (None, "abstained")
    line = next(line for line in log if line["message"] == "request")
    assert (line["path"], line["status"], line["level"]) == ("/score/batch", 200, "INFO")
    assert line["request_id"] and line["time"] and line["total_ms"] > 0
    assert "libpng warning: sRGB: duplicate" in [line["message"] for line in log]


def test_what_json_has_no_form_for_is_logged_as_text():
    program = """
import logging, pathlib
from rewardfleet_server.observe.logs import configure_logging
configure_logging("info")
try:
    raise ValueError("half of a pair: \\ud83d")
except ValueError as error:
    extra = {"path": pathlib.Path("clip.mp4"), "bytes": 2**70, "request_id": "r1"}
    logging.exception("%s", error, extra=extra)
"""
    with process(sys.executable, "-c", program) as started:
        _, text = started.communicate(timeout=60)
    [line] = map(json.loads, text.splitlines())
    assert (line["level"], line["message"]) == ("ERROR", "half of a pair: \ud83d")
    assert (line["path"], line["bytes"], line["request_id"]) == ("clip.mp4", 2**70, "r1")
    assert line["exc_info"].startswith("Traceback ") and line["time"].endswith("+00:00")


def with_repeated_chunk(png: bytes) -> bytes:
    """Return an image that libpng reports on the standard error of the process."""
    chunk = b"sRGB\0"
    chunk = b"\0\0\0\1" + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    return png[:33] + chunk * 2 + png[33:]


def test_the_startup_table_shows_where_items_are_scored_and_how_many_at_a_time():
    video = create_video_app(VideoSettings(), {"fake": FakeJudge()}).service.overview
    threads = max(2, os.cpu_count() or 1)
    assert video == {"judge": "fake", "workers": f"{threads} decode threads"}
    url = "http://user:secret@127.0.0.1:8080"
    settings = CodeSettings(fusion_url=url, workers=7, cache=None)
    fusion = create_code_app(settings).service.overview
    assert fusion == {"sandbox": "fusion at http://***@127.0.0.1:8080/", "concurrency": "7"}


class FailingJudge(FakeJudge):
    """A judge that cannot be warmed up."""

    @asynccontextmanager
    async def lifespan(self):
        raise RuntimeError("no warm-up")
        yield


@pytest.mark.parametrize(
    "judge",
    [
        ReferenceJudge(Library((), "empty")),
        find_judge("openai", VideoSettings(openai_url="http://127.0.0.1:1/v1", openai_model="m")),
    ],
    ids=lambda judge: type(judge).__name__,
)
async def test_judges_are_closed_if_another_one_fails_at_startup(judge: Judge):
    app = create_video_app(VideoSettings(), {"first": judge, "second": FailingJudge()})
    with pytest.raises(RuntimeError, match="no warm-up"):
        async with app.service.lifespan():
            raise AssertionError("it has started")
    is_reference = isinstance(judge, ReferenceJudge)
    assert judge._threads._shutdown if is_reference else judge._endpoint._http.is_closed
