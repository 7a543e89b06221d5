"""The gateway in front of real services, and of replicas that misbehave, on loopback."""

import asyncio
import hashlib
import json
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import httpx
import pytest

from rewardfleet import BackendFailed, InternalError, Unavailable
from rewardfleet.services import SERVICES
from rewardfleet_server.http.server import OrderlyConnections
from rewardfleet_server.testing import FakeJudge, serving, wait_until
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up import gateway as gateway_module
from rewardfleet_server.up import proxy, timeouts
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import table
from ...gateways import LOOPBACK, replica, reply
from ..conftest import apps_of_all
from ..http.raw import chunk, head, response

ANSWER = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
ITEM = {"response": ANSWER, "ground_truth": ANSWER}
MIB = 2**20
#: A request that waits in vain waits for so long.
HURRIED = {"x-request-timeout": "0.3"}
#: An address at which nothing listens.
NOTHING = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def slow_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until replicas accept connections, also on a busy machine."""
    monkeypatch.setattr(timeouts, "CONNECT_SECONDS", 60)


class Stub:
    """A replica of the `tools` service that behaves as a test needs.

    Attributes:
        requests: Scope and body of each request so far.
        disconnects: Number of requests whose connection ended before the response.
    """

    def __init__(
        self,
        status: int = 200,
        *,
        retry_after: int = 1,
        reads: bool = True,
        respond: threading.Event | None = None,
    ) -> None:
        self.status, self.disconnects = status, 0
        self.requests: list[tuple[dict, bytes]] = []
        self._retry_after, self._reads, self._respond = retry_after, reads, respond

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", self._reads
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope, body))
        if self._respond is not None:
            while not self._respond.is_set():
                try:
                    async with asyncio.timeout(0.01):
                        if (await receive())["type"] == "http.disconnect":
                            self.disconnects += 1
                            return
                except TimeoutError:
                    pass
        answer = hashlib.sha256(body).hexdigest().encode()
        headers = [(b"content-type", b"text/plain"), (b"keep-alive", b"timeout=5")]
        if self.status != 200:
            headers.append((b"retry-after", b"%d" % self._retry_after))
        await reply(send, self.status, headers, answer)


Front = Callable[..., httpx.Client]


@contextmanager
def fronted(fleet: dict[str, list[Replica]]) -> Iterator[httpx.Client]:
    with (
        serving(OrderlyConnections(Gateway(fleet, LOOPBACK))) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield client


@pytest.fixture
def front() -> Iterator[Front]:
    """Serve replicas of the `tools` service behind a gateway; return a client of the gateway.

    The client has the attribute `replicas`.
    """
    with ExitStack() as stack:

        def start(*apps: object) -> httpx.Client:
            urls = [each if isinstance(each, str) else stack.enter_context(serving(each))
                    for each in apps]  # fmt: skip
            replicas = [Replica("tools", url, is_ready=True) for url in urls]
            client = stack.enter_context(fronted({"tools": replicas}))
            client.replicas = replicas
            return client

        yield start


@pytest.fixture(scope="module")
def judge() -> FakeJudge:
    return FakeJudge(wait_s=20)


@pytest.fixture(scope="module")
def fleet(judge: FakeJudge) -> Iterator[httpx.Client]:
    """Return a client of a gateway in front of all services."""
    with ExitStack() as stack:
        replicas = {
            name: [Replica(name, stack.enter_context(serving(app)), is_ready=True)]
            for name, app in apps_of_all(judge, max_body_mb=2).items()
        }
        yield stack.enter_context(fronted(replicas))


def connected(client: httpx.Client, request: bytes, timeout_s: float = 60) -> socket.socket:
    """Send raw bytes on a connection of their own, which stays open."""
    address = client.base_url.host, client.base_url.port
    connection = socket.create_connection(address, timeout=timeout_s)
    connection.sendall(request)
    return connection


def exchange(client: httpx.Client, request: bytes) -> bytes:
    """Send raw bytes and return all that is answered until the connection is closed."""
    with connected(client, request) as connection:
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


# Paths and services


def test_every_service_answers_below_its_prefix(fleet: httpx.Client):
    score = fleet.post("/tools/score", json=ITEM, headers={"x-request-id": "abc"})
    assert score.status_code == 200
    assert score.json()["status"] == "ok"
    assert score.headers["x-rewardfleet-service"] == "tools"
    assert score.headers["x-request-id"] == "abc"
    item = {"uid": "a", "group": "g", "kind": "binary", "success": 1}
    batch = fleet.post("/episode/score/batch", json={"items": [item]})
    assert batch.status_code == 200, batch.text
    run = fleet.post("/code/run_code", json={"code": "print(1)", "language": "python"})
    assert run.json()["status"] == "Success"
    for name in SERVICES:
        assert fleet.get(f"/{name}").json()["service"] == name
        assert fleet.get(f"/{name}/healthz").status_code == 200
        assert fleet.head(f"/{name}/healthz").status_code == 200
    assert len(score.headers.get_list("date")) == 1


def test_the_documentation_page_finds_its_schema_and_needs_no_other_server(fleet: httpx.Client):
    page = fleet.get("/video/docs").text
    found = re.search(r"url: '([^']+)'", page)
    assert found
    assert found[1] == "/video/openapi.json"
    schema = fleet.get(found[1]).json()
    assert schema["info"]["title"] == "rewardfleet video"
    assert schema["servers"] == [{"url": "/video"}]
    for page in ("docs", "redoc"):
        files = re.findall(r'(?:src|href)="([^"]+)"', fleet.get(f"/video/{page}").text)
        assert files
        for file in files:
            assert file.startswith("/video/docs/static/")
            assert fleet.get(file).status_code == 200


def test_pages_of_the_gateway_itself_may_post(fleet: httpx.Client):
    host = fleet.base_url.netloc.decode()
    for origin, status in ((f"http://{host}", 200), ("http://evil.example", 403)):
        answer = fleet.post("/tools/score", json=ITEM, headers={"origin": origin})
        assert answer.status_code == status, answer.text


def test_a_page_whose_name_resolves_to_the_gateway_is_refused(fleet: httpx.Client):
    for path in ("/", "/readyz", "/video/healthz", "/inflight"):
        answer = fleet.get(path, headers={"host": "evil.example"})
        assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")


@pytest.mark.parametrize("prefix", ["'><script>", "//evil", "/a/../b", "https://evil", "/A'"])
def test_a_service_ignores_a_prefix_that_is_no_path(prefix: str):
    with serving(create_tools_app(ToolsSettings())) as url:
        headers = {"x-forwarded-prefix": prefix}
        page = httpx.get(f"{url}/docs", headers=headers, timeout=60, trust_env=False)
    assert "url: '/openapi.json'" in page.text


@pytest.mark.parametrize("path", ["/score", "/toolsx/score", "/%74ools/score", "//tools", "/a/b"])
def test_an_unknown_service_is_a_problem_that_names_the_services(fleet: httpx.Client, path: str):
    with httpx.Client(timeout=60, trust_env=False) as client:
        answer = client.post(f"http://{fleet.base_url.netloc.decode()}{path}", json={})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["kind"] == "not_found"
    assert answer.headers["x-rewardfleet-service"] == "gateway"
    for name in SERVICES:
        assert f"/{name}" in answer.json()["detail"]


def test_the_index_describes_the_fleet_and_readiness_names_what_is_missing(front: Front):
    client = front(Stub(), Stub())
    index = client.get("/").json()
    assert index["service"] == "gateway"
    assert index["services"]["tools"]["url"] == "/tools"
    assert index["services"]["tools"]["replicas"][0] == replica(client.replicas[0].url)
    assert client.get("/readyz").json() == {"status": "ready"}
    for each in client.replicas:
        each.is_ready = False
    assert client.get("/healthz").status_code == 200
    not_ready = client.get("/readyz")
    assert not_ready.status_code == 503
    assert "tools" in not_ready.json()["detail"]
    refused = client.post("/tools/score", json=ITEM, headers=HURRIED)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["retryable"] is True


# Headers


def test_requests_are_counted_with_the_failures_of_the_gateway_itself(front: Front):
    client, down = front(Stub()), front(NOTHING)
    assert client.post("/tools/score", json=ITEM).status_code == 200
    assert client.get("/nothing/score").status_code == 404
    assert client.post("/metrics").status_code == 405
    assert down.post("/tools/score", json=ITEM, headers=HURRIED).status_code == 503
    metrics, failed = client.get("/metrics"), down.get("/metrics").text
    assert metrics.headers["content-type"].startswith("text/plain")
    count = 'rewardfleet_requests_total{kind="%s",route="%s",service="gateway",status="%s"} 1.0'
    assert count % ("", "/tools", "") in metrics.text
    assert count % ("not_found", "/", "404") in metrics.text
    assert count % ("unavailable", "/tools", "503") in failed
    assert "process_start_time_seconds" in failed


def test_headers_of_one_connection_are_not_passed_on(front: Front):
    stub = Stub()
    of_connection = {"connection": "keep-alive, x-private", "x-private": "1", "te": "trailers"}
    passed_on = {"authorization": "Bearer key", "x-request-timeout": "7"}
    replaced = {"x-forwarded-host": "evil.example", "x-forwarded-prefix": "/evil"}
    given = {**of_connection, **passed_on, **replaced, "host": "localhost:80"}
    answer = front(stub).get("/tools/x?a=%0a&b=1", headers=given)
    scope, _ = stub.requests[0]
    headers = dict(scope["headers"])
    assert not {b"connection", b"x-private", b"te"} & headers.keys()
    assert {name: headers[name.encode()].decode() for name in passed_on} == passed_on
    # A replica listens on loopback; it compares the origin of a page with the forwarded host.
    assert headers[b"host"] == b"localhost"
    forwarded = [each for each in scope["headers"] if each[0].startswith(b"x-forwarded-")]
    host, prefix = (b"x-forwarded-host", b"localhost:80"), (b"x-forwarded-prefix", b"/tools")
    assert forwarded == [host, prefix]
    assert (scope["raw_path"], scope["query_string"]) == (b"/x", b"a=%0a&b=1")
    assert "keep-alive" not in answer.headers


SMUGGLED = b"GET /tools/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("headers", table("ambiguous_framing"))
def test_ambiguous_framing_is_refused_and_nothing_is_smuggled(front: Front, headers: str):
    stub = Stub()
    client = front(stub)
    client.get("/tools/x")  # a connection to the replica is open: requests reach it at once
    start = b"POST /tools/score HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    answer = exchange(client, start + headers.encode() + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400")
    client.get("/tools/x")
    assert [scope["path"] for scope, _ in stub.requests] == ["/x", "/x"]


def test_a_body_is_framed_again(front: Front):
    """What looks like another request inside a body arrives as a body."""
    stub = Stub()
    client = front(stub)
    for length, body in ((len(SMUGGLED), SMUGGLED), (None, chunk(SMUGGLED) + b"0\r\n\r\n")):
        request = head(length, "Connection: close", path="/tools/score") + body
        assert exchange(client, request).startswith(b"HTTP/1.1 200")
    assert [body for _, body in stub.requests] == [SMUGGLED, SMUGGLED]


@pytest.mark.parametrize("target", table("unusual_targets"))
def test_paths_and_queries_are_passed_on_unchanged(front: Front, target: str):
    stub = Stub()
    client = front(stub)
    request = f"GET /tools{target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(client, request.encode()).startswith(b"HTTP/1.1 200")
    assert client.replicas[0].is_ready
    ((scope, _),) = stub.requests
    path, _, query = target.partition("?")
    assert not {b"x-injected", b"x-too"} & dict(scope["headers"]).keys()
    assert (scope["raw_path"], scope["query_string"]) == (path.encode(), query.encode())


def test_headers_of_a_response_arrive_in_their_number(front: Front):
    headers = [*((b"x-%d" % number, b"y" * 20) for number in range(500))]
    headers += [(b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"x-raw", b"\xe9")]

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            await reply(send, 200, headers, b"")

    answer = front(app).get("/tools/x")
    assert len([each for each in answer.headers.raw if each[0].startswith(b"x-")]) == 501
    assert answer.headers.get_list("set-cookie") == ["a", "b"]
    assert (b"x-raw", b"\xe9") in answer.headers.raw


# The choice of a replica


def test_the_replica_with_the_fewest_requests_in_progress_is_chosen(front: Front):
    respond = threading.Event()
    busy, idle = Stub(respond=respond), Stub()
    client = front(busy, idle)
    client.replicas[1].is_ready = False
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "/tools/x")
        wait_until(lambda: len(busy.requests) == 1)
        client.replicas[1].is_ready = True
        for _ in range(5):
            assert client.get("/tools/x").status_code == 200
        respond.set()
        assert waiting.result().status_code == 200
    assert (len(busy.requests), len(idle.requests)) == (1, 5)
    wait_until(lambda: [each.outstanding for each in client.replicas] == [0, 0])


def test_equally_busy_replicas_take_turns(front: Front):
    stubs = [Stub(), Stub(), Stub()]
    client = front(*stubs)
    for _ in range(9):
        client.get("/tools/x")
    assert [len(stub.requests) for stub in stubs] == [3, 3, 3]


def test_a_429_of_one_replica_is_not_seen_and_the_replica_gets_a_pause(front: Front, monkeypatch):
    monkeypatch.setattr(timeouts, "MAX_COOLDOWN_SECONDS", 60)  # longer than the requests take
    full, free = Stub(429, retry_after=60), Stub()
    client = front(full, free)
    for _ in range(6):
        assert client.post("/tools/score", json=ITEM).status_code == 200
    assert (len(full.requests), len(free.requests)) == (1, 6)
    client.replicas[0].cooling_until = 0
    full.status = 200
    for _ in range(2):
        client.post("/tools/score", json=ITEM)
    assert len(full.requests) == 2


def test_if_all_replicas_answer_429_the_smallest_retry_after_is_passed_on(
    front: Front, monkeypatch
):
    monkeypatch.setattr(timeouts, "MAX_COOLDOWN_SECONDS", 60)  # longer than the requests take
    stubs = Stub(429, retry_after=90), Stub(429, retry_after=70), Stub(429, retry_after=200)
    client = front(*stubs)
    answer = client.post("/tools/score", json=ITEM)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "70")
    again = client.post("/tools/score", json=ITEM)
    assert again.json()["kind"] == "overloaded"
    assert 0 < again.json()["retry_after"] <= 60
    assert [len(stub.requests) for stub in stubs] == [1, 1, 1]
    # Pages and health checks are answered at capacity as well.
    assert client.get("/tools/healthz").status_code == 429
    assert [len(stub.requests) for stub in stubs] == [2, 2, 2]


@contextmanager
def broken_server(answer: bytes, end: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """Accept connections, read a request, send `answer`, and close; yield URL and requests.

    With the `end` of requests, close when the next one starts.
    """
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    received = connection.recv(65536)
                    while not received.endswith(end):
                        received += connection.recv(65536)
                    requests.append(received)
                    connection.sendall(answer)
                    if end:
                        connection.recv(1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def test_a_replica_that_cannot_be_reached_or_resets_is_not_seen(front: Front):
    working = Stub()
    with broken_server(b"") as (resetting, requests):
        client = front(NOTHING, resetting, working)
        bodies = [os.urandom(200_000) for _ in range(6)]
        for body in bodies:
            answer = client.post("/tools/score", content=body)
            assert answer.text == hashlib.sha256(body).hexdigest()
    assert [body for _, body in working.requests] == bodies
    assert len(requests) == 1
    refused, reset, _ = client.replicas
    assert not refused.is_ready and "connected" in refused.last_failure
    assert not reset.is_ready and "connection ended" in reset.last_failure


def test_a_request_that_two_replicas_did_not_survive_is_not_sent_to_a_third(front: Front):
    with ExitStack() as stack:
        servers = [stack.enter_context(broken_server(b"")) for _ in range(3)]
        client = front(*(url for url, _ in servers))
        answer = client.post("/tools/score", json=ITEM)
        assert (answer.status_code, answer.json()["retryable"]) == (502, True)
        assert sorted(len(requests) for _, requests in servers) == [0, 1, 1]


FAILURES = {"502": BackendFailed("no GPU"), "500": InternalError("a bug"), "503": Unavailable("x")}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("path", ["/video/score", "/video/score/batch"])
def test_a_replica_whose_answers_are_failures_is_avoided_until_it_works(
    frames_request: dict, kind: str, path: str
):
    """It fails fast, so that it would get most requests. If all fail, all are used."""
    judges = FakeJudge(error=FAILURES[kind], deterministic=False), FakeJudge(deterministic=False)
    body = {"items": [frames_request] * 2} if path.endswith("batch") else frames_request
    with ExitStack() as stack:
        apps = [create_video_app(VideoSettings(), {"fake": each}) for each in judges]
        urls = [stack.enter_context(serving(app)) for app in apps]
        failing, working = replicas = [Replica("video", url, is_ready=True) for url in urls]
        client = stack.enter_context(fronted({"video": replicas}))

        def scored(calls: int) -> list[bool]:
            answers = [client.post(path, json=body) for _ in range(calls)]
            return [e.status_code == 200 and '"status":"error"' not in e.text for e in answers]

        working.outstanding = 1  # the other one seems to be idle
        first = [scored(1)[0] for _ in range(5)]
        # A 503 is tried elsewhere, also that of a batch without an item that was available.
        assert first == [kind == "503"] * 5
        failing.avoided_until = math.inf
        seen = len(judges[0].seen)
        assert scored(5) == [True] * 5
        assert len(judges[0].seen) == seen
        judges[1].error = judges[0].error
        working.failures, working.avoided_until = failing.failures, math.inf
        assert scored(2) == [False] * 2
        assert len(judges[0].seen) > seen
        judges[0].error, working.failures = None, 0
        failing.avoided_until = 0.0
        assert scored(1) == [True]
        assert failing.failures == 0


def test_a_batch_without_an_available_item_is_a_503_that_is_passed_on(frames_request: dict):
    """Of others, a header says how many failed for a reason of the replica."""
    error = Unavailable("the disk is full", retry_after=7)
    app = create_video_app(VideoSettings(), {"fake": FakeJudge(error=error)})
    with serving(app) as url, fronted({"video": [Replica("video", url, True)]}) as client:
        answer = client.post("/video/score/batch", json={"items": [frames_request] * 3})
        problem = answer.json()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
        assert (problem["kind"], problem["detail"]) == ("unavailable", "the disk is full")
        for invalid, failed in ((1, "2"), (2, "2"), (3, None)):
            items = [frames_request] * 2 + [{}] * invalid
            answer = client.post("/video/score/batch", json={"items": items})
            assert answer.status_code == 200
            assert answer.headers.get("x-failed-items") == failed


# Bodies


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_arrives_although_one_replica_refuses(front: Front, is_chunked: bool):
    """The replica refuses before it reads the body, so the gateway has sent nothing of it."""
    full, free = Stub(429, reads=False), Stub()
    client = front(full, free)
    body = os.urandom(32 * MIB)
    content = (body[i : i + 100_000] for i in range(0, len(body), 100_000)) if is_chunked else body
    client.replicas[1].outstanding = 1  # the other one is tried first
    answer = client.post("/tools/score", content=content)
    assert answer.text == hashlib.sha256(body).hexdigest()
    assert (len(full.requests), len(free.requests)) == (1, 1)
    assert dict(free.requests[0][0]["headers"])[b"expect"] == b"100-continue"


def test_a_large_body_that_is_refused_after_it_was_read_gets_a_503_to_send_again(front: Front):
    client = front(Stub(429, retry_after=4), Stub())
    client.replicas[1].outstanding = 1
    body = os.urandom(3 * MIB)
    answer = client.post("/tools/score", content=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "0")
    assert answer.json()["retryable"] is True
    assert client.post("/tools/score", content=body).status_code == 200


def test_bodies_are_not_stored_beyond_a_limit_for_all(front: Front, monkeypatch):
    monkeypatch.setattr(proxy, "MAX_TOTAL_BYTES", 1000)
    client = front(Stub(503), Stub())
    client.replicas[1].outstanding = 1
    assert client.post("/tools/score", content=b"x" * 900).status_code == 200
    assert client.post("/tools/score", content=b"x" * 900).status_code == 200
    assert client.post("/tools/score", content=b"x" * 1100).headers["retry-after"] == "0"


def test_an_early_answer_arrives_while_the_body_is_still_being_sent(fleet: httpx.Client):
    """The service refuses by Content-Length; what is sent afterwards is not read."""
    size = 800 * MIB
    with connected(fleet, head(size, path="/tools/score")) as connection:
        assert response(connection)[0] == 413
        sent = 0
        with suppress(ConnectionError):
            while sent < size:
                sent += connection.send(bytes(MIB))
        assert sent < size


def test_a_refusal_in_the_middle_of_a_small_body_is_not_seen(front: Front):
    """What was sent to the first replica is sent again to the second, and then the rest."""
    full, free = Stub(429, reads=False), Stub()
    client = front(full, free)
    client.replicas[1].outstanding = 1
    with connected(client, head(9, path="/tools/x") + b"abc") as connection:
        wait_until(lambda: client.replicas[1].outstanding == 2)
        connection.sendall(b"defghi")
        assert response(connection)[0] == 200
    assert [body for _, body in free.requests] == [b"abcdefghi"]
    assert len(full.requests) == 1


def test_an_answer_in_the_middle_of_a_small_body_arrives(front: Front):
    client = front(Stub(413, reads=False))
    with connected(client, head(1000, path="/tools/score") + b"x") as connection:
        assert response(connection)[0] == 413
    wait_until(lambda: client.replicas[0].outstanding == 0)


@pytest.mark.slow
def test_a_caller_that_waits_for_100_continue_gets_it_from_the_service(fleet: httpx.Client):
    body = json.dumps({**ITEM, "response": ANSWER + " " * MIB}).encode()
    start = head(len(body), "Expect: 100-continue", path="/tools/score")
    with connected(fleet, start) as connection:
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert response(connection)[0] == 200


# Responses


class Streamer:
    """Sends a chunk whenever `go` is released; the last one is never sent if `fails`."""

    def __init__(self, *, fails: bool = False) -> None:
        self.go = threading.Semaphore(0)
        self._fails = fails

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await asyncio.to_thread(self.go.acquire)
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
        if not self._fails:
            await send({"type": "http.response.body", "body": b""})


def test_a_response_is_passed_on_as_it_arrives(front: Front):
    streamer = Streamer()
    client = front(streamer)
    with client.stream("GET", "/tools/x") as answer:
        chunks = answer.iter_raw()
        for _ in range(3):
            streamer.go.release()
            assert next(chunks) == b"x" * 10
        assert list(chunks) == []


def test_an_incomplete_response_never_looks_complete(front: Front):
    streamer = Streamer(fails=True)
    streamer.go.release(3)
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\nonly this"
    unframed = b"HTTP/1.1 200 OK\r\n\r\nonly this"
    with broken_server(large) as (short, _), broken_server(unframed) as (endless, _):
        for replica in (streamer, short, endless):
            with pytest.raises(httpx.RemoteProtocolError):
                front(replica).get("/tools/x")


def test_a_request_whose_small_response_is_incomplete_is_sent_again(front: Front):
    partial = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"
    stub = Stub()
    with broken_server(partial) as (short, _):
        client = front(short, stub)
        client.replicas[1].outstanding = 1  # the other one is tried first
        assert client.post("/tools/x", content=b"a").text == hashlib.sha256(b"a").hexdigest()
    assert not client.replicas[0].is_ready


def test_an_answer_that_is_not_http_is_a_failure_of_the_replica(front: Front):
    with broken_server(b"SSH-2.0-OpenSSH\r\n") as (url, _):
        answer = front(url).get("/tools/x", headers=HURRIED)
    assert answer.status_code == 503
    assert "not valid HTTP" in answer.json()["detail"]


def test_a_request_on_a_connection_that_has_just_ended_arrives_whole(front: Front):
    """aiohttp sends requests of idempotent methods again, with their bodies."""
    body = b"x" * 99_999 + b"end"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
    with broken_server(answer, end=b"end") as (url, requests):
        client = front(url)
        for _ in range(3):
            assert client.put("/tools/x", content=body).text == "a"
    assert [each.partition(b"\r\n\r\n")[2] for each in requests] == [body] * 3


def test_a_second_response_on_a_connection_is_not_given_to_another_request(front: Front):
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na" * 2
    with broken_server(twice) as (url, _):
        client = front(url)
        client.get("/tools/x")
        client.replicas[0].is_ready = True
        assert client.get("/tools/x").text != "aa"


def test_a_large_response_arrives(front: Front):
    content = os.urandom(32 * MIB)

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            await reply(send, 200, [], content)

    assert front(app).get("/tools/x").content == content


def test_a_caller_that_disconnects_cancels_the_computation(
    fleet: httpx.Client, judge: FakeJudge, frames_request: dict
):
    cancelled = judge.cancelled
    seen = len(judge.seen)
    body = json.dumps(frames_request).encode()
    with connected(fleet, head(len(body), path="/video/score") + body):
        wait_until(lambda: len(judge.seen) > seen)
    wait_until(lambda: judge.cancelled > cancelled)

    def shown() -> dict:
        return fleet.get("/").json()["services"]["video"]["replicas"][0]

    wait_until(lambda: shown()["outstanding"] == 0)
    assert shown()["is_ready"] is True


# Limits


def test_connections_are_used_again_until_the_service_would_close_them(front: Front, monkeypatch):
    stub = Stub()
    client = front(stub)
    for _ in range(3):
        client.post("/tools/x", content=b"x").raise_for_status()
    monkeypatch.setattr(timeouts, "IDLE_SECONDS", 0.0)
    again = front(stub)
    for _ in range(2):
        again.get("/tools/x")
    ports = [scope["client"][1] for scope, _ in stub.requests]
    assert len(set(ports[:3])) == 1
    assert ports[3] != ports[4]


@pytest.mark.slow
def test_the_gateway_does_not_read_ahead_of_a_slow_service(front: Front):
    """The service asks for the body, reads the start of it, and then nothing."""
    done = threading.Event()

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            await receive()
            await asyncio.to_thread(done.wait, 20)

    client = front(app)
    with connected(client, head(999_999_999, path="/tools/x"), 0.4) as connection:
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 * MIB:
                sent += connection.send(b"x" * 65536)
    done.set()
    wait_until(lambda: client.replicas[0].outstanding == 0)
    assert 0 < sent < 32 * MIB


@pytest.mark.slow
def test_the_gateway_does_not_read_ahead_of_a_slow_caller(front: Front, monkeypatch):
    """Responses wait in the service; a caller that reads nothing loses its connection to it."""
    monkeypatch.setattr(timeouts, "SILENCE_SECONDS", 0.5)
    sent = 0

    async def app(scope, receive, send) -> None:
        nonlocal sent
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await receive()
            disconnected = asyncio.create_task(receive())
            while sent < 128 * MIB and not disconnected.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                sent += 65536

    client = front(app)
    with connected(client, b"GET /tools/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 1):
        wait_until(lambda: sent > 0)
        wait_until(lambda: client.replicas[0].outstanding == 0)
        assert 0 < sent < 64 * MIB


@pytest.mark.slow
def test_a_caller_that_stops_sending_its_body_is_answered(front: Front, monkeypatch):
    monkeypatch.setattr(timeouts, "SILENCE_SECONDS", 0.2)
    client = front(Stub())
    with connected(client, head(99, path="/tools/x") + b"abc") as connection:
        assert response(connection)[0] == 504
    wait_until(lambda: client.replicas[0].outstanding == 0)


@pytest.mark.slow
def test_a_response_that_takes_too_long_is_a_504(front: Front, monkeypatch):
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.1)
    stub = Stub(respond=threading.Event())
    # The replica must get the request before.
    answer = front(stub).get("/tools/x", headers={"x-request-timeout": "3"})
    assert (answer.status_code, answer.json()["kind"]) == (504, "deadline_exceeded")
    wait_until(lambda: stub.disconnects == 1)


def test_requests_beyond_the_limit_get_429(front: Front, monkeypatch):
    monkeypatch.setattr(gateway_module, "MAX_REQUESTS", 1)
    respond = threading.Event()
    stub = Stub(respond=respond)
    client = front(stub)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "/tools/x")
        wait_until(lambda: len(stub.requests) == 1)
        refused = client.get("/tools/x")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get("/healthz").status_code == 200
        respond.set()
        assert waiting.result().status_code == 200


# Requests that wait in line


@pytest.mark.slow
@pytest.mark.parametrize("first", [None, 429, 503], ids=["not ready", "429", "503"])
def test_a_request_that_may_wait_is_answered_when_a_replica_can(front: Front, first: int | None):
    stub = Stub(first or 200)
    client = front(stub)
    (replica,) = client.replicas
    replica.is_ready = first is not None
    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(client.post, "/tools/run_code", content=b"x" * 9) for _ in range(30)]
        if first is not None:
            refused = client.post("/tools/score")
            assert refused.status_code in {429, 503}, "at capacity, others are answered at once"
            wait_until(lambda: len(stub.requests) > 1)
        assert not any(each.done() for each in waiting)
        stub.status, replica.is_ready = 200, True
        assert {each.result().status_code for each in waiting} == {200}
    scope, body = stub.requests[-1]
    assert body == b"x" * 9
    assert float(dict(scope["headers"])[b"x-request-held"]) > 0


@pytest.mark.parametrize(
    ("path", "status"), [("/tools/run_code", 504), ("/tools/get_reward", 503), ("/tools/x", 503)]
)
def test_a_request_that_has_waited_in_vain_fails_as_its_client_can_handle(
    front: Front, path: str, status: int
):
    client = front(NOTHING)
    client.replicas[0].is_ready = False
    answer = client.post(path, headers=HURRIED)
    assert answer.status_code == status
    assert "no replica of tools is ready" in answer.json()["detail"]


def test_the_body_of_a_request_in_line_is_not_read(front: Front):
    client = front(Stub())
    client.replicas[0].is_ready = False
    with connected(client, head(64 * MIB, path="/tools/verify")) as connection:
        connection.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 * MIB:
                sent += connection.send(bytes(MIB))
        assert sent < 16 * MIB  # the buffers of sockets
        client.replicas[0].is_ready = True
        connection.settimeout(60)
        connection.sendall(bytes(64 * MIB - sent))
        assert response(connection)[0] == 200


def test_more_requests_are_held_than_bodies_can_be_stored(front: Front, monkeypatch):
    monkeypatch.setattr(proxy, "MAX_TOTAL_BYTES", 1000)
    client = front(Stub())
    client.get("/tools/x")
    client.replicas[0].is_ready = False
    with ThreadPoolExecutor(5) as pool:
        held = [pool.submit(client.post, "/tools/x", content=b"x" * 900) for _ in range(5)]
        wait_until(lambda: waiting(client) == 5)
        client.replicas[0].is_ready = True
        assert [each.result().status_code for each in held] == [200] * 5


@pytest.mark.slow
def test_a_held_request_has_the_time_that_is_left_and_the_whole_one_for_its_program(front: Front):
    """Also one that waits for a replica at capacity since then."""
    stub = Stub()
    client = front(stub)
    (replica,) = client.replicas
    client.post("/tools/score", headers={"x-request-timeout": "50"})
    replica.is_ready = False
    for page in ("healthz", "readyz", "metrics", "inflight", "health", "docs", ""):
        assert client.get(f"/tools/{page}").status_code in {200, 503}, "pages never wait"
    with ThreadPoolExecutor(4) as pool:
        calls = [("50", None), ("60", "70"), (None, None)]
        for number, (timeout, call) in enumerate(calls):
            given = {"x-request-timeout": timeout, "x-call-timeout": call}
            headers = {name: value for name, value in given.items() if value}
            send = partial(client.post, f"/tools/{number}", content=b"x", headers=headers)
            pool.submit(send)
        gone = connected(client, b"POST /tools/gone HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: waiting(client) == 4)
        gone.close()
        wait_until(lambda: waiting(client) == 3)
        in_line = partial(client.get, "/inflight")
        wait_until(lambda: all(each["age_s"] > 0.2 for each in in_line().json()["samples"]))
        stub.status, replica.is_ready = 429, True
        wait_until(lambda: len(stub.requests) >= 4)
        stub.status = 200
    seen = {scope["path"]: dict(scope["headers"]) for scope, _ in stub.requests}
    assert seen["/score"][b"x-request-timeout"] == b"50"
    assert b"x-call-timeout" not in seen["/score"]
    assert 0 < float(seen["/0"][b"x-request-timeout"]) < 50
    assert 0 < float(seen["/1"][b"x-request-timeout"]) < 60
    assert (seen["/0"][b"x-call-timeout"], seen["/1"][b"x-call-timeout"]) == (b"50", b"70")
    assert not {b"x-request-timeout", b"x-call-timeout", b"x-request-held"} & seen["/2"].keys()
    assert "/gone" not in seen


def waiting(client: httpx.Client) -> int:
    """Return how many requests wait in line at a gateway."""
    return client.get("/inflight").json()["total"]


def test_a_service_that_was_never_ready_is_not_waited_for(front: Front):
    with fronted({"tools": [Replica("tools", NOTHING)]}) as client:
        answer = client.post("/tools/score", json=ITEM)
    assert (answer.status_code, answer.json()["kind"]) == (503, "unavailable")


def test_what_waits_is_listed_for_the_key_that_sent_it_if_no_replica_can_check_it(front: Front):
    client = front(NOTHING)
    with ThreadPoolExecutor(2) as pool:
        for key in ("a", "b"):
            headers = {"authorization": f"Bearer {key}", "x-request-id": key}
            headers["x-request-timeout"] = "20"
            pool.submit(client.post, "/tools/score", json=ITEM, headers=headers)
        wait_until(lambda: waiting(client) == 2)
        for key, ids in (("a", ["a"]), ("c", [])):
            headers = {"authorization": f"Bearer {key}"}
            found = client.get("/tools/inflight", headers=headers).json()
            assert found["total"] == 2
            assert [each["request_id"] for each in found["samples"]] == ids
        assert client.get("/video/inflight").status_code == 404
        client.replicas.clear()  # as `rewardfleet up` does at its end: nothing waits any more
        wait_until(lambda: waiting(client) == 0)
