"""Real clips, and real servers on loopback."""

import os

# Before numpy is imported: threads of OpenBLAS that wait spin, and take the cores of other tests.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import base64
import functools
import gc
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import cv2
import httpx
import numpy as np
import pytest
from hypothesis import settings

from rewardfleet.score_log import queue
from rewardfleet_server.cache.scores import Audits
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

# Its modules are imported on first use, by threads of servers, and pytest parses them, as anyio has
# a plugin. Before Python 3.11.8 and 3.12.2, two threads that parse disturb each other (gh-106905).
for _name in dir(anyio):
    getattr(anyio, _name)

HERE = Path(__file__).parent
DATA = HERE / "data"

#: A real LIBERO rollout of 308 frames, 256x256.
LONG_CLIP = (
    DATA / "libero" / "videos"
) / "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"

#: How many times as long as in CI the tests of `chaos/` run; `make chaos` sets it.
CHAOS_FACTOR = int(os.environ.get("CHAOS_FACTOR", "1"))
#: Folders with a gate of their own: the marker of their tests, and the seconds of one.
GATES = {
    "chaos": ("chaos", 180 * CHAOS_FACTOR),
    "deploy": ("deploy", 900),
    "engines": ("engines", 600),
    "k8s": ("k8s", 180),
    "packages": ("packages", 900),
    "ray_serve": ("ray", 600),
}
#: What the tests of such a folder import, where that is in an environment of its own. It warns.
PACKAGES = {"engines": "vllm", "ray_serve": "ray"}

#: Headers of a request whose body is written by the test.
JSON = {"content-type": "application/json"}

Serve = Callable[..., httpx.Client]


def table(name: str) -> list[Any]:
    """Return the inputs of a test, and what is expected: the lines of a file but its comments."""
    lines = (DATA / "tables" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if not line.startswith("#")]


def text_of(pieces: list[Any] | str) -> str:
    """Return a text of a table: as it is, or its pieces, some with how often they are repeated."""
    return "".join(each if isinstance(each, str) else each[0] * each[1] for each in pieces)


# The same examples in each run, and no limit of time for one, which a busy machine exceeds.
settings.register_profile("tests", settings.get_profile("ci"), max_examples=50)


# Tests read a log once it is closed, which waits two seconds for its thread: too short at times.
queue._CLOSE_SECONDS = 60.0

# While pytest imports the tests, hardly anything becomes garbage.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder that has a gate of its own, unless that gate runs."""
    folder = _folder(collection_path)
    if folder not in GATES:
        return None
    if folder in PACKAGES:
        return None if find_spec(PACKAGES[folder]) else True
    marker, _ = GATES[folder]
    return None if re.search(rf"(?<!not )\b{marker}\b", config.getoption("markexpr")) else True


@functools.cache
def _folder(path: Path) -> str:
    """Return the folder of tests that a path is in."""
    return path.relative_to(HERE).parts[0] if HERE in path.parents else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = _folder(item.path)
        if folder in GATES:
            marker, seconds = GATES[folder]
            item.add_marker(marker)
            item.add_marker(pytest.mark.timeout(seconds))
        if folder in PACKAGES:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
    # No long file is begun last.
    every = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-slow[item.path], -every[item.path]))


def pytest_collection_finish() -> None:
    """Leave the modules and tests out of later collections of garbage, which would take seconds."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_garbage_collection_in_measurements(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("serial"):
        gc.disable()
    yield
    gc.enable()


def required(program: str) -> str:
    """Return the path of a program. Without it, a test fails in CI and is skipped elsewhere."""
    if path := shutil.which(program):
        return path
    reason = f"{program} is missing: `make install` installs it as root, or prints the command"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("REWARDFLEET_", "OTEL_")) or name == "COLUMNS":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_audits_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit all cached scores or none: tests count what is computed."""
    is_due = Audits.is_due
    monkeypatch.setattr(
        Audits, "is_due", lambda audits, free: audits._rate == 1 and is_due(audits, free)
    )


@pytest.fixture(autouse=True)
def _logging_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in this process leave its logging and standard error alone."""
    monkeypatch.setattr("rewardfleet_server.serve.configure_logging", lambda level: None)
    monkeypatch.setattr("rewardfleet_server.serve.capture_native_output", lambda: None)


@contextmanager
def client_of(app: Callable[..., Any]) -> Iterator[httpx.Client]:
    """Serve an application; yield an HTTP client of it."""
    with (
        serving(app) as url,
        httpx.Client(base_url=url, timeout=150, trust_env=False, verify=False) as client,
    ):
        yield client


@contextmanager
def served(judge: FakeJudge | None = None, **settings: object) -> Iterator[httpx.Client]:
    """Serve the video service with one judge, and yield an HTTP client of it."""
    with client_of(create_app(VideoSettings(**settings), {"fake": judge or FakeJudge()})) as client:
        yield client


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start services that end with the test and read videos in `tmp_path`."""
    with ExitStack() as stack:

        def start(judge: FakeJudge | None = None, **settings: object) -> httpx.Client:
            return stack.enter_context(served(judge, **{"video_root": [tmp_path], **settings}))

        yield start


@pytest.fixture
def make_video(tmp_path: Path) -> Callable[..., Path]:
    """Write an mp4 whose frame i has gray level i (modulo 256)."""

    def make(
        frames: int,
        *,
        width: int = 64,
        height: int = 48,
        name: str = "clip.mp4",
        codec: str = "mp4v",
    ) -> Path:
        path = tmp_path / name
        fourcc = cv2.VideoWriter.fourcc(*codec)
        writer = cv2.VideoWriter(str(path), fourcc, 20.0, (width, height))
        for index in range(frames):
            writer.write(np.full((height, width, 3), index % 256, np.uint8))
        writer.release()
        return path

    return make


def image_base64(width: int = 32, height: int = 24, *, level: int = 100, kind: str = ".jpg") -> str:
    """Return a small image of one gray level in base64."""
    encoded, content = cv2.imencode(kind, np.full((height, width, 3), level, np.uint8))
    assert encoded
    return base64.b64encode(content.tobytes()).decode()


@pytest.fixture
def frames_request() -> dict[str, object]:
    """Return a small, complete request that needs no file."""
    return {"task_text": "put the bowl on the plate", "frames_base64": [image_base64()]}


@contextmanager
def served_with(settings: VideoSettings) -> Iterator[httpx.Client]:
    """Serve the video service with the judges of its settings, and yield an HTTP client of it."""
    with client_of(create_app(settings)) as client:
        yield client
