"""The code service over real HTTP, at each isolation level. A missing level fails the tests."""

import asyncio
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.sandboxes import Sandbox
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import FakeSandbox

from ...conftest import DATA, client_of, required
from ..processes import descendants
from .fuzz_normal_form import Runner

LEVELS = ("bubblewrap", "landlock")

#: More than honest programs need on a machine that is busy, or that pauses for seconds.
LIMITS = {"cpu_s": 10, "wall_s": 30, "memory_mb": 256, "output_kb": 2048}
#: For programs that must not pass, so that those that do not end take little time.
SHORT_LIMITS = {**LIMITS, "cpu_s": 0.25, "wall_s": 1.5}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave two thirds of what is alike at both isolation levels to `make test-full` at one."""
    for item in items:
        # By its name: a test that failed is tried again, among fewer.
        is_second = LEVELS[1] in item.name and "protocol" in item.keywords
        if is_second and zlib.crc32(item.nodeid.encode()) % 3:
            item.add_marker("full")


def rows(file: str, table: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows of a table in `tests/data/code` by their names, or numbers."""
    found = {}
    for line in (DATA / "code" / f"{file}.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.pop("table", None) == table:
            row.pop("note", None)
            found[row.pop("name", f"{len(found)}")] = row
    return found


def sources(file: str) -> dict[str, str]:
    """Return the programs of a text file in `tests/data/code` by their names."""
    _, *blocks = (DATA / "code" / f"{file}.txt").read_text().split("\n=== ")
    return {name: source.rstrip("\n") + "\n" for name, source in (b.split("\n", 1) for b in blocks)}


def sample(cases: Mapping[str, object], every: int = 1) -> list[object]:
    """Return parameters, of which `make test` tries the first of `every`, `make test-full` all."""
    return [
        pytest.param(case, id=name, marks=[pytest.mark.full] if number % every else [])
        for number, (name, case) in enumerate(cases.items())
    ]


class HeldSandbox(FakeSandbox):
    """A fake in which nothing ends before `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    async def run(self, job, on_result, timing):
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        await super().run(job, on_result, timing)


class Service:
    """A running service, with shortcuts for requests."""

    def __init__(self, client: httpx.Client, level: str) -> None:
        self.client = client
        self.level = level

    def post(self, revision: str, tests: dict[str, object], **fields: object) -> httpx.Response:
        body = {"revision": revision, "tests": tests, "limits": LIMITS, **fields}
        return self.client.post("/score", json=body)

    def score(self, revision: str, tests: dict[str, object], **fields: object) -> dict:
        response = self.post(revision, tests, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def verdict(self, revision: str, tests: dict[str, object], **fields: object) -> str:
        """Return the verdict of the first test."""
        return self.score(revision, tests, **fields)["verdicts"][0]["verdict"]


#: Programs and tests that have the same verdicts in each sandbox.
VERDICTS = rows("verdicts")


def check_verdicts(service: Service, row: dict[str, Any]) -> None:
    """Score the program of a row, and compare what it says of the score."""
    options = {name: row[name] for name in ("limits", "mode") if name in row}
    score = service.score(row["program"], row["tests"], **options)
    first = score["verdicts"][0]
    assert verdicts(score) == row["verdicts"], score
    assert score["score"] == row.get("score", score["score"])
    assert row.get("stderr", "") in first["stderr"]
    assert "by" not in row or {each["verdict_by"] for each in score["verdicts"]} == {row["by"]}
    assert first["checker_message"] == row.get("message", first["checker_message"])
    fields = row.get("fields", {})
    assert {name: score[name] for name in fields} == fields


def stdio(*cases: tuple[str, str], **fields: object) -> dict[str, object]:
    items = [{"stdin": stdin, "stdout": stdout} for stdin, stdout in cases]
    return {"kind": "stdio", "cases": items, **fields}


def functional(fn_name: str, *cases: tuple[list, object]) -> dict[str, object]:
    items = [{"args": args, "expected": expected} for args, expected in cases]
    return {"kind": "functional", "fn_name": fn_name, "cases": items}


def asserts(*cases: str, **fields: object) -> dict[str, object]:
    return {"kind": "asserts", "cases": list(cases), **fields}


@contextmanager
def served_code(
    level: str = "auto", sandbox: Sandbox | None = None, **settings: object
) -> Iterator[Service]:
    """Serve the code service for the duration of the block."""
    if level == "bubblewrap":
        required("bwrap")
    # Without a cache, so that the effects of an attack on later programs are visible.
    jails = {} if "fusion_url" in settings else {"workers": 2, "isolation": level}
    settings = {**jails, "cache_mb": 0, "cache": None, **settings}
    app = create_app(CodeSettings(**settings), sandbox)
    with client_of(app) as client:
        yield Service(client, level)


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with served_code(workers=2) as service:
        yield service


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="session", params=LEVELS)
def level_service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with served_code(request.param) as service:
        yield service


def verdicts(score: dict[str, Any]) -> list[str]:
    return [each["verdict"] for each in score["verdicts"]]


def proc(pid: int, file: str) -> str:
    """Return what the kernel says of a process; "" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_text()
    return ""


def programs() -> set[int]:
    """Return the processes of programs and tests: they have a second seccomp filter."""
    return {pid for pid in descendants() if "Seccomp_filters:\t2\n" in proc(pid, "status")}
