"""OpenTelemetry traces: spans that reach a real receiver, and nothing without configuration."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.observe import otel
from rewardfleet_server.testing import FakeJudge, FakeSandbox, serving, wait_until
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import client_of
from ...gateways import fleet_of, reply
from ...measure import Stopwatch
from ..code.conftest import LEVELS
from .test_in_flight import ANSWER, body, listed, posting

#: A trace of a caller, of the specification's example.
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


class Receiver:
    """An OTLP receiver on loopback: the spans that arrived, each with the name of its service."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, ProtoSpan]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                for each in ExportTraceServiceRequest.FromString(content).resource_spans:
                    names = {a.key: a.value.string_value for a in each.resource.attributes}
                    for scope in each.scope_spans:
                        receiver.spans += [(names["service.name"], span) for span in scope.spans]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def named(self, name: str) -> list[ProtoSpan]:
        return [span for _, span in self.spans if span.name == name]

    def one(self, name: str) -> ProtoSpan:
        (span,) = self.named(name)
        return span


def attributes(span: ProtoSpan) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def parent_of(span: ProtoSpan) -> str:
    return span.parent_span_id.hex()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    threading.Thread(target=receiver.server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Receive the spans of the services that the test starts. They export when they end."""
    monkeypatch.setattr(otel, "_FLUSH_SECONDS", 60)
    with receiving() as started:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield started


#: A trainer that uses OpenTelemetry.
TRAINER = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from rewardfleet import RewardFleet, blocking, code_request

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
tests = {"kind": "stdio", "cases": [{"stdin": "SECRET", "stdout": "SECRET"}]}

async def train():
    async with RewardFleet(sys.argv[1]) as fleet:
        await fleet.code.score_batch([code_request("print(input())", tests)])

with blocking.RewardFleet(sys.argv[1]) as fleet:
    with trace.get_tracer("trainer").start_as_current_span("step 1"):
        score = fleet.code.score("print(input())  # SECRET", tests)
assert score.score == 1.0
asyncio.run(train())
provider.shutdown()
"""


@pytest.mark.slow
def test_one_call_is_one_trace_from_the_trainer_to_the_jail(receiver: Receiver):
    """Also through the gateway, and with the blocking client, which calls from another thread."""
    settings = CodeSettings(workers=1, cache=None, cache_mb=0, isolation=LEVELS[1])
    with serving(create_code_app(settings)) as url, fleet_of(code=url) as fleet_url:
        env = {**os.environ, "OTEL_SERVICE_NAME": "trainer"}
        subprocess.run([sys.executable, "-c", TRAINER, fleet_url], env=env, check=True, timeout=150)
    step = receiver.one("step 1")
    trace_id = step.trace_id
    spans = [(service, span) for service, span in receiver.spans if span.trace_id == trace_id]
    assert all(
        service == "trainer" for service, span in spans if span.kind == ProtoSpan.SPAN_KIND_CLIENT
    )
    tree = {span.span_id: (service, span) for service, span in spans}

    def path(span: ProtoSpan) -> list[str]:
        above = tree.get(span.parent_span_id)
        service, name = tree[span.span_id][0], span.name
        return [*(path(above[1]) if above else []), f"{service}: {name}"]

    paths = {tuple(path(span)) for _, span in spans}
    call = ("trainer: step 1", "trainer: POST /score", "rewardfleet-code: POST /score")
    item = (*call, "rewardfleet-code: score")
    backend = (*item, "rewardfleet-code: backend")
    assert paths == {
        call[:1], call[:2], call, item, backend,
        (*item, "rewardfleet-code: queue"),
        (*backend, "rewardfleet-code: queue"),  # for a jail
        (*backend, "rewardfleet-code: jail"),
    }  # fmt: skip
    server = next(s for _, s in spans if s.kind == ProtoSpan.SPAN_KIND_SERVER)
    client = next(s for _, s in spans if s.kind == ProtoSpan.SPAN_KIND_CLIENT)
    request_id = attributes(server)["rewardfleet.request_id"]
    assert request_id and attributes(client)["rewardfleet.request_id"] == request_id
    assert attributes(server)["http.response.status_code"] == 200
    scored = next(s for _, s in spans if s.name == "score")
    (event,) = scored.events
    assert (event.name, attributes(event)) == ("gen_ai.evaluation.result", {
        "gen_ai.evaluation.name": "jail",
        "gen_ai.evaluation.score.label": "ok",
        "gen_ai.evaluation.score.value": 1.0,
    })  # fmt: skip
    batch = receiver.one("code.score_batch")  # a trace of its own
    assert not batch.parent_span_id and batch.trace_id != trace_id
    assert {span.name for _, span in receiver.spans if span.trace_id == batch.trace_id} >= {
        "code.score_batch", "POST /score/batch", "score", "jail",
    }  # fmt: skip
    assert not any("SECRET" in str(span) or "print" in str(span) for _, span in receiver.spans)


@pytest.mark.slow
def test_failures_have_a_kind_and_no_message(receiver: Receiver):
    judge = FakeJudge(wait_s=30)
    app = create_video_app(VideoSettings(), {"fake": judge})
    with client_of(app) as client:
        hurried = {"x-request-timeout": "4"}
        late = client.post("/score", json=body(), headers={**TRACEPARENT, **hurried})
        assert late.status_code == 504
        assert client.post("/score", json={"task_text": "SECRET"}).status_code == 422
        with posting(client, "/score", body(1)):
            wait_until(lambda: len(judge.seen) == 2)
        wait_until(lambda: judge.cancelled == 2 and listed(client)["total"] == 0)
    late_span, invalid, left = sorted(
        receiver.named("POST /score"), key=lambda span: span.start_time_unix_nano
    )
    assert (late_span.trace_id.hex(), parent_of(late_span)) == (TRACE_ID, PARENT_ID)
    kinds = {"deadline_exceeded": late_span, "invalid": invalid, "disconnected": left}
    for kind, span in kinds.items():
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert attributes(span)["error.type"] == span.status.message == kind
    stages = [each for each in receiver.named("backend") if each.trace_id == late_span.trace_id]
    assert [attributes(each)["error.type"] for each in stages] == ["cancelled"]
    assert "SECRET" not in str(receiver.spans)


def test_the_spans_of_a_batch_are_limited(receiver: Receiver):
    app = create_video_app(VideoSettings(), {"fake": FakeJudge()})
    with client_of(app) as client:
        items = [body(n) for n in range(100)]
        answer = client.post("/score/batch", json={"items": items}, headers=TRACEPARENT)
        assert answer.status_code == 200
    server = receiver.one("POST /score/batch")
    assert attributes(server)["rewardfleet.items"] == 100
    items = receiver.named("score")
    assert len(items) == 64
    assert {parent_of(each) for each in items} == {server.span_id.hex()}
    assert {span.trace_id.hex() for _, span in receiver.spans} == {TRACE_ID}


def test_an_openai_endpoint_gets_the_trace(receiver: Receiver):
    seen: list[str] = []
    answer = {"choices": [{"message": {"content": "80"}, "finish_reason": "stop"}]}

    async def endpoint(scope, receive, send):
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            seen.extend(v.decode() for name, v in scope["headers"] if name == b"traceparent")
            await reply(send, 200, [], json.dumps(answer).encode())

    with serving(endpoint) as url:
        openai = {"backend": "openai", "openai_url": f"{url}/v1", "openai_model": "m"}
        settings = VideoSettings(**openai, set=["readout=text"])
        with client_of(create_video_app(settings)) as client:
            answer = client.post("/score", json=body(), headers=TRACEPARENT)
            assert answer.json()["score"] == 0.8
    assert seen == [f"00-{TRACE_ID}-{receiver.one('backend').span_id.hex()}-01"]


def test_the_variables_of_opentelemetry_apply(receiver: Receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-judges")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with client_of(create_video_app(VideoSettings(), {"fake": FakeJudge()})) as client:
        client.post("/score", json=body(1))
        client.post("/score", json=body(2), headers=TRACEPARENT)
    assert {service for service, _ in receiver.spans} == {"my-judges"}
    assert len(receiver.named("POST /score")) == 1  # of the trace that its caller samples
    receiver.spans.clear()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with client_of(create_video_app(VideoSettings(), {"fake": FakeJudge()})) as client:
        client.post("/score", json=body(1), headers=TRACEPARENT)
    assert receiver.spans == []


@pytest.mark.slow
def test_a_receiver_that_hangs_delays_neither_requests_nor_the_end(monkeypatch):
    monkeypatch.setattr(otel, "_FLUSH_SECONDS", 0.3)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never answers
        port = silent.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{port}/x")
        app = create_code_app(CodeSettings(cache=None), FakeSandbox())
        tests = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
        with client_of(app) as client:
            for number in range(20):
                fields = {"revision": f"print({number})", "tests": tests}
                assert client.post("/score", json=fields).status_code == 200
            watch = Stopwatch()
        assert watch.seconds < 9


def test_without_the_packages_a_warning_names_them(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "rewardfleet_server.observe.otel")
    with caplog.at_level(logging.WARNING):
        app = create_video_app(VideoSettings(), {"fake": FakeJudge()})
    assert "opentelemetry.sdk.resources is not installed: " in caplog.text
    with client_of(app) as client:
        assert client.post("/score", json=body()).status_code == 200


@pytest.mark.slow
def test_without_configuration_nothing_is_imported():
    """FastAPI itself imports the interface, which does nothing; the SDK is another package."""
    program = """
import sys
from rewardfleet import blocking
import rewardfleet
with blocking.RewardFleet(tools="http://127.0.0.1:1", timeout_s=1) as fleet:
    try:
        fleet.tools.score("x", "y")
    except rewardfleet.RewardFleetError:
        pass
assert not [name for name in sys.modules if name.startswith("opentelemetry")]

from rewardfleet_server.testing import serving
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
with serving(create_app(ToolsSettings())) as url, blocking.RewardFleet(tools=url) as fleet:
    fleet.tools.score(sys.argv[1], sys.argv[1])
forbidden = ("opentelemetry.sdk", "opentelemetry.exporter", "rewardfleet_server.observe.otel")
assert not [name for name in sys.modules if name.startswith(forbidden)]
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", program, ANSWER], env=env, check=True, timeout=150)
