"""`rewardfleet load`: what it sends, what it measures, and what it reports."""

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from array import array

import numpy as np
import pytest

from rewardfleet.commands.load import generator, quantiles
from rewardfleet.commands.load.generator import ALL, LoadGenerator, LoadPlan, LoadResults
from rewardfleet.commands.load.requests import LoadRequest, generate_requests, read_requests
from rewardfleet.commands.main import main
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up.settings import free_port

from ...conftest import served, table
from ...gateways import fleet_of

SCORE = {"score": 1.0, "status": "ok"}
#: Arrivals of the plan of `load`, which are the same in each run.
DUE = 17


@pytest.fixture(autouse=True)
def slow_connections(monkeypatch) -> None:
    """Wait until a connection is there, also on a busy machine."""
    monkeypatch.setattr(generator, "_CONNECT_SECONDS", 60)


class Standin:
    """Answers all requests in the same way."""

    def __init__(self, content: object = SCORE, status: int = 200, wait=None) -> None:
        self.seen: list[dict[bytes, bytes]] = []  #: the headers of each request
        self._content, self._status, self._wait = content, status, wait

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        self.seen.append(dict(scope["headers"]))
        if self._wait is not None:
            await self._wait()
        is_text = isinstance(self._content, str)
        body = (self._content if is_text else json.dumps(self._content)).encode()
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": self._status, "headers": length})
        await send({"type": "http.response.body", "body": body})


def load(url: str, score: float | None = None, **fields: float) -> LoadResults:
    """Send the same request at a rate."""
    plan = LoadPlan(**{"rate": 200.0, "duration_s": 0.1, "timeout_s": 60.0, **fields})
    request = LoadRequest(service="tools", body={}, score=score)
    sender = LoadGenerator(plan, itertools.repeat(request), {"tools": url}, "key")
    asyncio.run(sender.run())
    assert sum(sender.results.kinds["tools"].values()) == len(list(plan.arrival_times()))
    assert not sender._tasks and sender._bytes == 0
    return sender.results


def test_quantiles_are_those_of_the_durations():
    found = quantiles(array("d", np.random.default_rng(0).permutation(1000)))
    assert [*found.values()] == [499, 899, 989, 998, 999]
    assert quantiles(array("d"))["p50"] is None


def test_arrivals_have_the_rate_and_are_the_same_in_each_run():
    plan = LoadPlan(rate=100.0, duration_s=100.0, timeout_s=1.0)
    times = list(plan.arrival_times())
    gaps = np.diff(times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert times == list(plan.arrival_times())


@pytest.mark.slow
def test_requests_that_are_due_while_the_service_hangs_are_slow():
    """A caller that waits for each answer would measure one slow request."""
    began: list[float] = []  # when the first request arrived

    async def hang() -> None:
        began.append(time.monotonic())
        await asyncio.sleep(max(began[0] + 0.4 - time.monotonic(), 0))

    standin = Standin(wait=hang)
    with serving(standin) as url:
        results = load(url, duration_s=0.5)
    headers = standin.seen[0][b"authorization"], standin.seen[0][b"x-request-timeout"]
    assert headers == (b"Bearer key", b"60")
    found = quantiles(results.latencies["tools"])
    assert results.kinds["tools"] == {"scored": len(results.latencies["tools"])}
    assert found["p50"] > 0.1 and found["max"] > 0.3
    assert results.most_in_flight > 5


@pytest.mark.parametrize(("content", "status", "kind"), table("load_answers"))
def test_answers_are_counted_by_kind(content: object, status: int, kind: str):
    with serving(Standin(content, status)) as url:
        assert load(url, score=1.0).kinds["tools"] == {kind: DUE}


@pytest.mark.slow
def test_requests_that_nobody_answers_are_failures():
    results = load(f"http://127.0.0.1:{free_port()}")
    assert results.kinds["tools"] == {"cannot be reached": DUE}
    with serving(Standin(wait=lambda: asyncio.sleep(30))) as url:
        results = load(url, timeout_s=4)
        assert results.kinds["tools"] == {"no answer in time": DUE}
        assert min(results.latencies["tools"]) > 3.5
        kinds = load(url, timeout_s=4, max_in_flight=5).kinds["tools"]
    assert kinds == {"no answer in time": 5, "not sent: too many in flight": DUE - 5}


def test_messages_do_not_fill_the_memory_and_all_services_are_counted_together():
    results = LoadResults()
    results.add("tools", "internal", "x" * 10_000, 0.1)
    results.add("tools", "internal", "y", 0.1)
    results.add("code", "scored", "", 0.1)
    assert results.kinds[ALL] == {"scored": 1, "internal": 2}
    assert results.examples["tools", "internal"] == "x" * 200


@pytest.mark.slow
def test_bodies_and_answers_in_flight_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(generator, "_MAX_BYTES", 10)  # five bodies
    with serving(Standin(wait=lambda: asyncio.sleep(30))) as url:
        kinds = load(url, timeout_s=4).kinds["tools"]
    assert kinds == {"no answer in time": 5, "not sent: too many in flight": DUE - 5}
    monkeypatch.undo()
    monkeypatch.setattr(generator, "_MAX_RESPONSE_BYTES", 1000)
    with serving(Standin("x" * 2000)) as url:
        results = load(url)
    assert results.kinds["tools"] == {"disconnected": DUE}
    assert "more than 1000" in results.examples["tools", "disconnected"]


@pytest.mark.slow
def test_a_fleet_is_loaded_and_reported(capsys):
    with serving(create_app(ToolsSettings())) as tools, fleet_of(tools=tools) as url:
        arguments = ["load", url, "--rate", "100", "--duration-s", "0.2"]
        assert main([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main([*arguments, "--max-p99-s", "0.000001"]) == 1
        output = capsys.readouterr()
        assert main(["load", f"{url}/code"]) == 2
        assert "there is no service at" in capsys.readouterr().err
        assert main(["load", f"{url}/tools", tools, *arguments[2:], "--json"]) == 0
        both = json.loads(capsys.readouterr().out)
    assert list(found["services"]) == list(both["services"]) == ["tools"]
    tally, latency = found["services"]["tools"], found["services"]["tools"]["latency_s"]
    assert tally["due"] == tally["scored"] > 5 and 0 < latency["p50"] <= latency["p99.9"]
    assert "tools: p99 is" in output.err and "above 1e-06 s" in output.err
    assert re.search(r"tools +\d+ +\d+ +0 +0 +0", output.out)


def test_generated_requests_differ_and_their_clips_are_scored():
    assert next(generate_requests(["tools"])).body != next(generate_requests(["tools"])).body
    request = next(generate_requests(["video"]))
    with served() as client:
        answer = client.post("/score", json=request.body).json()
    assert (answer["status"], answer["provenance"]["frames"]["total"]) == ("ok", 16)


def test_requests_are_read_from_a_file(tmp_path):
    path = tmp_path / "requests.jsonl"
    first = LoadRequest(service="tools", body={"response": "a"}, score=0.5)
    second = LoadRequest(service="code", body={"items": []}, path="/score/batch")
    lines = [each.model_dump_json(exclude_defaults=True) for each in (first, second)]
    path.write_text("\n".join(lines) + "\n\n")
    assert read_requests(path) == [first, second]


@pytest.mark.parametrize(("line", "reason"), table("load_files"))
def test_a_file_that_is_not_valid_is_refused(tmp_path, line: str, reason: str):
    path = tmp_path / "requests.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=reason):
        read_requests(path)


@pytest.mark.parametrize(("arguments", "reason"), table("load_arguments"))
def test_invalid_arguments_are_refused(arguments: list[str], reason: str, capsys):
    assert main(["load", "--duration-s", "0.1", *arguments]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_gives_the_report_so_far():
    standin = Standin({**SCORE, "service": "tools"})  # also its index
    with serving(standin) as url:
        command = [sys.executable, "-m", "rewardfleet_server", "load", url]
        options = ["--duration-s", "600", "--rate", "50", "--json"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE)
        wait_until(lambda: len(standin.seen) > 30)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(output)
    assert found["interrupted"] and found["services"]["tools"]["due"] > 20
    assert found["warnings"][-1].startswith("Interrupted")
