"""What a check may use, and how its process ends."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.testing import wait_until

from ...running import output_of
from ..processes import descendants, service_process
from ..video.test_bad_input import check_problem
from .conftest import metric, score, served_answers

#: Takes minutes.
LONG = "\\boxed{\\sum_{k=1}^{50000} k!}"
#: Takes seconds to read.
DEEP = "{" * 4000 + "x" + "}" * 4000
#: Needs a gigabyte for a text of 10,000 letters, as each of them is in 200 groups.
WIDE = f"(?:{'(a?)' * 200}b)*"
EASY = [("\\boxed{(x+1)^2}", "x^2+2x+1"), ("\\boxed{\\frac{6}{4}}", "3/2"), ("B", "B")]


def workers_of(pid: int) -> set[int]:
    """The worker processes of a service: its confined children."""
    status = {each: Path(f"/proc/{each}/status") for each in descendants(pid, 1)}
    return {each for each, path in status.items() if "Seccomp:\t2" in path.read_text()}


@contextmanager
def service_with(**settings: object) -> Iterator[tuple[int, httpx.Client]]:
    """Run the service in a process of its own; yield its id and a client."""
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with (
        service_process("answers", *flags) as (process, url),
        httpx.Client(base_url=url, timeout=150, trust_env=False) as client,
    ):
        yield process.pid, client


def check_others(client: httpx.Client) -> None:
    for response, reference in EASY:
        assert score(client, response, reference)["score"] == 1


@pytest.mark.parametrize(
    ("response", "fields", "settings"),
    [
        (LONG, {"reference": "5"}, {"max_cpu_s": 0.2}),
        (f"\\boxed{{{DEEP}}}", {"reference": "x"}, {"max_cpu_s": 0.2}),
        ("b" * 9999, {"reference": WIDE, "form": "regex"}, {"max_cpu_s": 600, "max_memory_mb": 8}),
        ("b" * 10_001, {"reference": "b", "form": "exact"}, {}),
    ],
    ids=["time", "depth", "memory", "length"],
)
def test_an_answer_that_exceeds_a_limit_is_too_complex(response: str, fields: dict, settings: dict):
    """Others are scored meanwhile."""
    with served_answers(cache_mb=0, **settings) as client, ThreadPoolExecutor() as pool:
        asked = [pool.submit(score, client, response, **fields) for _ in range(4)]
        check_others(client)
        found = [each.result() for each in asked]
        assert {(each["score"], each["cause"]) for each in found} == {(0, "too_complex")}
        assert (metric(client, "check_limits_total") > 0) == bool(settings)
        assert metric(client, "check_kills_total") == 0
        check_others(client)


def test_a_reference_that_exceeds_a_limit_is_invalid():
    with served_answers(max_cpu_s=0.2) as client:
        refused = client.post("/score", json={"response": "\\boxed{x}", "reference": DEEP})
        check_problem(refused, "invalid", "reference: to compare it takes too much time or memory")
        body = {"response": LONG, "reference": "5"}
        assert client.post("/score", json=body).json()["cause"] == "too_complex"
        check_others(client)


def test_a_worker_that_something_else_kills_is_no_verdict():
    """The check is repeated once."""
    with service_with(workers=1, max_cpu_s=600, cache_mb=0) as (pid, client):

        def kill_worker() -> None:
            wait_until(lambda: workers_of(pid))
            (worker,) = workers_of(pid)
            os.kill(worker, signal.SIGKILL)

        kill_worker()
        check_others(client)
        assert metric(client, "check_kills_total") == 1
        with ThreadPoolExecutor() as pool:
            body = {"response": LONG, "reference": "5"}
            asked = pool.submit(client.post, "/score", json=body)
            wait_until(lambda: metric(client, "in_flight_items") == 1)
            kill_worker()
            wait_until(lambda: metric(client, "check_kills_total") == 2)
            kill_worker()
        check_problem(asked.result(), "unavailable", "SIGKILL ended two workers")
        check_others(client)


def test_a_caller_that_leaves_and_a_service_that_stops_end_their_processes():
    with service_with(workers=1, max_cpu_s=600) as (pid, client):
        patience = httpx.Timeout(60, read=0.5)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/score", json={"response": LONG, "reference": "5"}, timeout=patience)
        wait_until(lambda: metric(client, "in_flight_items") == 0)
        check_others(client)
        everything = descendants(pid)
        assert everything
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in everything))


CONFINED = """
import json, os, signal, socket, subprocess
from rewardfleet_server.answers.worker import _only_computing, confine
attempts = {
    "read": lambda: open("/etc/passwd"),
    "write": lambda: open("/tmp/rewardfleet-answers", "w"),
    "list": lambda: os.listdir("/"),
    "socket": lambda: socket.socket(),
    "pair": lambda: socket.socketpair(),
    "fork": lambda: os.fork(),
    "run": lambda: subprocess.run(["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "user": lambda: os.setuid(0),
    "priority": lambda: os.nice(-1),
}
confine(_only_computing(), 2**28)
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "works")
    except OSError as error:
        print(name, error.errno)
try:
    bytearray(2**29)
except MemoryError:
    print("memory")
"""


def test_a_worker_can_open_no_file_and_no_socket_and_start_no_process():
    lines = output_of(sys.executable, "-c", CONFINED).splitlines()
    names = ["read", "write", "list", "socket", "pair", "fork", "run", "kill", "user", "priority"]
    assert lines == [*(f"{each} 1" for each in names), "memory"]


def test_a_schema_reads_no_file_and_no_address(service: httpx.Client, tmp_path: Path):
    (tmp_path / "schema.json").write_text(json.dumps(True))
    for address in (f"file://{tmp_path}/schema.json", f"{service.base_url}openapi.json"):
        body = {"response": "[1]", "schema": {"$ref": str(address)}}
        check_problem(service.post("/score", json=body), "invalid", "schema: ")
