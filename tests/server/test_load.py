"""`rewardfleet load`: what it sends, what it measures, and what it reports."""

import asyncio
import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import trustme

from rewardfleet.commands.load import generator
from rewardfleet.commands.load.generator import LoadGenerator, Plan
from rewardfleet.commands.load.html import as_html
from rewardfleet.commands.load.latency import Latencies
from rewardfleet.commands.load.requests import LoadRequest, RecordedRequests
from rewardfleet.commands.load.results import Outcome, Results
from rewardfleet.commands.main import main
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up import upstream
from rewardfleet_server.up.settings import free_port

from ..gateways import fleet_of

SCORE = {"score": 1.0, "status": "ok"}


@pytest.fixture(autouse=True)
def slow_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a connection is there, also on a busy machine."""
    monkeypatch.setattr(upstream, "_CONNECT_SECONDS", 60)


class Same:
    """Sends one request again and again."""

    services = frozenset({"tools"})

    def __init__(self, score: float | None = None) -> None:
        self._request = LoadRequest("tools", "/score", b"{}", score)

    def next(self) -> LoadRequest:
        return self._request


class Standin:
    """Answers all requests in the same way.

    Attributes:
        seen: The headers of each request.
    """

    def __init__(self, content: object = SCORE, status: int = 200, wait=None) -> None:
        self.seen: list[dict[bytes, bytes]] = []
        self._content, self._status, self._wait = content, status, wait

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        self.seen.append(dict(scope["headers"]))
        if self._wait is not None:
            await self._wait()
        body = self._content if isinstance(self._content, bytes) else json.dumps(self._content)
        body = body if isinstance(body, bytes) else body.encode()
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": self._status, "headers": length})
        await send({"type": "http.response.body", "body": body})


def load(url: str, score: float | None = None, **fields: object) -> Results:
    plan = Plan(**{"rate": 200.0, "duration_s": 0.1, "arrivals": "constant", **fields})
    sender = LoadGenerator(plan, Same(score), {"tools": url}, "key")
    asyncio.run(sender.run(asyncio.Event()))
    for each in sender.results.services.values():
        assert each.due == each.scored + each.abstained + each.errors.total()
    assert sender.in_flight == sender._bytes == 0
    return sender.results


def test_quantiles_are_exact_to_one_percent():
    values = np.random.default_rng(0).lognormal(-4, 2, 20_000).clip(2e-4, 3000)
    latencies, half = Latencies(), Latencies()
    for index, value in enumerate(values):
        (latencies if index % 2 else half).add(float(value))
    latencies.merge(half)
    for q in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = float(np.quantile(values, q, method="inverted_cdf"))
        assert latencies.quantile(q) == pytest.approx(exact, rel=0.011)
    assert latencies.longest == values.max()
    assert Latencies().quantile(0.5) is None
    assert sum(count for _, _, count in latencies.histogram(7)) == len(values)


def test_poisson_arrivals_have_the_rate_and_are_the_same_in_each_run():
    plan = Plan(rate=100.0, duration_s=100.0)
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

    with serving(Standin(wait=hang)) as url:
        results = load(url, duration_s=0.5)
    latencies = results.total.latencies
    assert latencies.count == 100 == results.total.scored
    assert latencies.quantile(0.5) > 0.1
    assert latencies.longest > 0.3
    assert results.most_in_flight > 30


@pytest.mark.parametrize(
    ("standin", "kind"),
    [
        (Standin({"kind": "overloaded", "detail": "full", "status": 429}, 429), "overloaded"),
        (Standin(b"<html>", 502), "HTTP 502"),
        (Standin({"score": 0.5, "status": "ok"}), "wrong score"),
        (Standin({"score": None, "status": "ok"}), "invalid answer"),
        (Standin({"results": [SCORE, {"error": {"kind": "internal"}}]}), "internal"),
        (Standin({"results": []}), "invalid answer"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_failures_are_counted_by_kind(standin: Standin, kind: str):
    with serving(standin) as url:
        tally = load(url, score=1.0).total
    assert set(tally.errors) == {kind}
    assert tally.scored == 0


@pytest.mark.slow
def test_abstentions_and_cached_scores_are_counted():
    with serving(Standin({"score": None, "status": "abstained"})) as url:
        assert load(url).total.abstained == 20
    with serving(Standin({**SCORE, "cached": True})) as url:
        assert load(url, score=1.0).total.cached == 20


@pytest.mark.slow
def test_requests_that_nobody_answers_are_failures():
    assert set(load(f"http://127.0.0.1:{free_port()}").total.errors) == {"cannot be reached"}
    with serving(Standin(wait=lambda: asyncio.sleep(30))) as url:
        results = load(url, timeout_s=4)
        assert results.total.errors == {"no answer in time": 20}
        assert results.total.latencies.quantile(0.01) > 3.5
        results = load(url, timeout_s=4, max_in_flight=5)
    assert results.total.errors == {"no answer in time": 5, "not sent: too many in flight": 15}


def test_kinds_of_failures_do_not_fill_the_memory():
    results = Results(1.0)
    for number in range(1000):
        results.add_due("tools", 0.0)
        results.add("tools", 0.0, Outcome(f"kind {number}", "x" * 10_000), 0.1)
    assert len(results.total.errors) == 51
    assert max(map(len, results.total.examples.values())) <= 200


@pytest.mark.slow
def test_bodies_and_answers_in_flight_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator, "_MAX_BYTES", 10)  # five bodies
    with serving(Standin(wait=lambda: asyncio.sleep(30))) as url:
        errors = load(url, timeout_s=4).total.errors
    assert errors == {"no answer in time": 5, "not sent: too many in flight": 15}
    monkeypatch.undo()
    monkeypatch.setattr(generator, "_MAX_RESPONSE_BYTES", 1000)
    with serving(Standin(b"x" * 2000)) as url:
        results = load(url)
    assert results.total.errors["disconnected"] == 20
    assert set(results.total.examples.values()) == {"its response is too large"}


def test_the_api_key_and_the_deadline_are_sent():
    standin = Standin()
    with serving(standin) as url:
        load(url, timeout_s=7.0)
    assert standin.seen[0][b"authorization"] == b"Bearer key"
    assert standin.seen[0][b"x-request-timeout"] == b"7"


@pytest.mark.slow
def test_a_fleet_is_loaded_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = tmp_path / "report.html"
    with serving(create_app(ToolsSettings())) as tools, fleet_of(tools=tools) as url:
        arguments = ["load", url, "--rate", "100", "--duration-s", "0.2", "--html", str(report)]
        assert main([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main([*arguments, "--max-p99-s", "0.000001"]) == 1
        output = capsys.readouterr()
        assert main([*arguments, "--mix", "code"]) == 2
    assert "there is no service code" in capsys.readouterr().err
    tally = found["services"]["tools"]
    assert tally["due"] == tally["scored"] > 5
    assert 0 < tally["latency_s"]["p50"] <= tally["latency_s"]["p99.9"]
    assert "tools: p99 is" in output.err and "above 1e-06 s" in output.err
    assert re.search(r"tools +\d+ +\d+ +0 +0 +0", output.out)
    page = report.read_text()
    assert "above 1e-06 s" in page and page.count("<svg") == 3
    assert not re.search(r"<script|src=|url\(|@import|href=\"(?!data:)", page)


async def test_a_fleet_behind_tls_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    body = json.dumps(SCORE).encode()

    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while await reader.readuntil(b"{}"):
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "localhost", 0, ssl=context) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        for trusted in (False, True):
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            sender = LoadGenerator(Plan(100.0, 0.05, "constant"), Same(), {"tools": url}, "")
            await sender.run(asyncio.Event())
            total = sender.results.total
            assert (total.scored, set(total.errors)) == (
                (5, set()) if trusted else (0, {"cannot be reached"})
            )
        await asyncio.gather(*answering)


def test_a_report_escapes_what_services_answer():
    results = Results(1.0)
    results.add_due("tools", 0.0)
    results.add("tools", 0.0, Outcome("<script>", "<b>&"), 0.1)
    page = as_html(Plan(1.0, 1.0), results, ["<i>"], {"tools": "http://u:secret@h/"})
    assert "<script" not in page and "<b>&" not in page and "<i>" not in page
    assert "secret" not in page
    as_html(Plan(1.0, 1.0), Results(1.0), [], {})  # nothing was sent


def test_requests_of_a_file_are_sent_in_turn(tmp_path: Path):
    path = tmp_path / "requests.jsonl"
    lines = [
        {"service": "tools", "body": {"response": "a"}, "score": 0.5},
        {"service": "code", "body": {"items": []}, "path": "/score/batch"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    requests = RecordedRequests(path)
    assert requests.services == {"tools", "code"}
    assert [requests.next().service for _ in range(3)] == ["tools", "code", "tools"]
    assert requests.next() == LoadRequest("code", "/score/batch", b'{"items": []}', None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "has no requests"),
        ("{", "line 1"),
        ('{"service": "x", "body": {}}', "is not one of video"),
        ('{"service": "code", "body": {}, "path": "/metrics"}', "path"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, line: str, reason: str):
    path = tmp_path / "requests.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=reason):
        RecordedRequests(path)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["http://127.0.0.1:9"], "cannot be reached"),
        (["ftp://x"], "give a URL such as"),
        (["--service", "x=http://h"], "NAME=URL"),
        (["--service", "code=http://127.0.0.1:9", "--mix", "code=0"], "N above 0"),
        (["--mix", "code", "--requests", "f"], "--mix goes with generated requests"),
        (["--rate", "nan"], "give a number"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["load", "--duration-s", "0.1", *arguments]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_gives_the_report_so_far(tmp_path: Path):
    standin = Standin()
    with serving(standin) as url:
        command = [sys.executable, "-m", "rewardfleet_server", "load", "--service", f"tools={url}"]
        options = ["--duration-s", "600", "--rate", "50", "--html", str(tmp_path / "r"), "--json"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE)
        wait_until(lambda: len(standin.seen) > 20)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(output)
    assert found["interrupted"] and found["services"]["tools"]["due"] > 20
    assert "Interrupted after" in (tmp_path / "r").read_text()
