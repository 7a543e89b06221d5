"""Connections that make no progress: they end, and others do not notice them."""

import json
import re
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rewardfleet_server.http import app as http_app
from rewardfleet_server.http import body as http_body
from rewardfleet_server.http import protocol
from rewardfleet_server.http.protocol import HttpProtocol
from rewardfleet_server.testing import FakeJudge, serving, wait_until
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import image_base64
from ...gateways import LOOPBACK
from ...measure import Stopwatch
from ..processes import idle_seconds, service_process, watched

MIB = 2**20
Connect = Callable[[], socket.socket]


def connect_to(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=15)


def head(length: int | None, *headers: str, path: str = "/score") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        size,
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def response(connection: socket.socket) -> tuple[int, bytes]:
    """Read one response; return its status and body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (more := connection.recv(65536))
        if not more:
            return 0, received
    start, _, content = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", start, re.IGNORECASE)[1])
    while len(content) < length:
        content += connection.recv(65536)
    return int(start.split()[1]), content[:length]


def has_ended(connection: socket.socket) -> bool:
    """Wait until the service closes a connection; return False if it does not in time."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.fixture
def url() -> Iterator[str]:
    """Serve the video service in this process, where its time limits can be changed."""
    app = create_app(VideoSettings(max_body_mb=4), {"fake": FakeJudge()})
    with serving(app, HttpProtocol) as url:
        yield url


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect_to(url))


@pytest.fixture
def item() -> bytes:
    return json.dumps({"task_text": "x", "frames_base64": [image_base64()]}).encode()


@pytest.mark.serial
@pytest.mark.slow
def test_stalled_bodies_do_not_block_others():
    small = chunk(b'{"task_text":') + chunk(b'"x"}') + b"0\r\n\r\n"
    with service_process("tools") as (process, url), ExitStack() as stack:
        idle = idle_seconds(url, process.pid)
        stalled = [stack.enter_context(connect_to(url)) for _ in range(17)]
        for connection in stalled:
            connection.sendall(head(64 * MIB) + b"{")

        def post(_: int) -> int:
            with connect_to(url) as connection:
                connection.sendall(head(None) + small)
                return response(connection)[0]

        with ThreadPoolExecutor(40) as pool:
            statuses, watch = watched(
                url,
                process.pid,
                lambda: set(pool.map(post, range(40))),
                most_seconds=idle + 0.25,
            )
        assert statuses == {422}  # read, and without a response
        assert watch.slowest < idle + 0.25


@pytest.mark.slow
def test_a_refused_body_is_not_read():
    with service_process("video") as (_, url), connect_to(url) as connection:
        connection.sendall(head(10**12))
        sent, started = 0, time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - started < 20:
                sent += connection.send(bytes(MIB))
        assert sent < 32 * MIB  # the buffers of sockets, mostly
        assert response(connection)[0] == 413


def test_a_refusal_is_followed_by_the_next_request_if_the_body_is_small(
    connect: Connect, item: bytes, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise, callers that send all of a request would lose their connection at each 401."""
    monkeypatch.setattr(protocol, "_DISCARD_SECONDS", 30)
    connection = connect()
    for _ in range(2):
        connection.sendall(head(100_000, "Content-Encoding: gzip"))
        assert response(connection)[0] == 422
        connection.sendall(b" " * 100_000)
    connection.sendall(head(len(item)) + item)
    assert response(connection)[0] == 200


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_refusal_that_ends_the_connection_is_not_lost_with_the_body(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, is_complete: bool
):
    """A connection that is closed with a part of the body unread is reset."""
    monkeypatch.setattr(protocol, "_DISCARD_SECONDS", 60 if is_complete else 0.5)
    size = MIB // 4
    with connect() as connection:
        connection.sendall(head(size, "Connection: close", path="/nowhere") + b" " * (size - 9))
        if is_complete:
            connection.sendall(b" " * 9)
        status, content = response(connection)
        assert (status, json.loads(content)["kind"]) == (404, "not_found")
        assert connection.recv(1) == b"", "the end, and no reset"


def test_a_refused_body_that_stalls_ends_the_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "_DISCARD_SECONDS", 0.1)
    connection = connect()
    connection.sendall(head(100_000, "Content-Encoding: gzip") + b" ")
    assert response(connection)[0] == 422
    assert has_ended(connection)


@pytest.mark.slow
def test_a_slow_body_is_accepted_and_one_that_is_too_slow_is_not(
    connect: Connect, item: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_body, "_FIRST_SECONDS", 0.5)
    body = item + b" " * 12_000
    for bytes_per_second, expected in ((100, 200), (500_000, 504)):
        monkeypatch.setattr(http_body, "_MIN_BYTES_PER_SECOND", bytes_per_second)
        connection = connect()
        parts = [body[start : start + 1000] for start in range(0, len(body), 1000)]
        parts[0] = head(len(body)) + parts[0]  # one read: its bytes count from the beginning
        for part in parts:
            connection.sendall(part)
            if select.select([connection], [], [], 0.1)[0]:  # the upload is slow
                break
        status, content = response(connection)
        assert status == expected
    problem = json.loads(content)
    assert problem["kind"] == "deadline_exceeded" and "too slowly" in problem["detail"]
    assert has_ended(connection)


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["new", "kept alive"])
def test_headers_that_do_not_arrive_end_the_connection(
    connect: Connect, item: bytes, monkeypatch: pytest.MonkeyPatch, is_first: bool
):
    monkeypatch.setattr(protocol, "_HEADER_SECONDS", 0.2)
    connection = connect()
    if not is_first:
        connection.sendall(head(len(item)) + item)
        assert response(connection)[0] == 200
    watch = Stopwatch()
    connection.sendall(b"POST /score HTTP/1.1\r\nHost: localhost\r\n")
    ended = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            while not ended.wait(0.02):
                connection.sendall(b"X: y\r\n")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        assert has_ended(connection)
        ended.set()
    assert watch.seconds < 10


KIB = 1024
START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LARGE_HEADS = {
    "one header": START + b"X: " + b"y" * 300 * KIB + b"\r\n\r\n",
    "one header that never ends": START + b"X: " + b"y" * 300 * KIB,
    "a name": START + b"y" * 300 * KIB + b": x\r\n\r\n",
    "many headers": START + b"X: yyyyy\r\n" * 30_000 + b"\r\n",
    "empty headers": START + b"X:\r\n" * 15_000 + b"\r\n",
    "little too many": START + b"X: " + b"y" * 64 * KIB + b"\r\n\r\n",
    "target": b"GET /" + b"y" * 300 * KIB + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "target and headers": b"GET /%b HTTP/1.1\r\nX: %b\r\n\r\n" % ((b"y" * 33 * KIB,) * 2),
    "method": b"P" * 300 * KIB,
    "trailers": head(None) + chunk(b"{}") + b"0\r\n" + b"X: yyyyy\r\n" * 30_000 + b"\r\n",
    "a trailer": head(None) + chunk(b"{}") + b"0\r\nX: " + b"y" * 300 * KIB + b"\r\n\r\n",
    "chunk extension": head(None) + b"2;x=" + b"y" * 300 * KIB + b"\r\n{}\r\n0\r\n\r\n",
    "offer": START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nX: " + b"y" * 300 * KIB + b"\r\n\r\n",
}


@pytest.fixture
def gateway() -> Iterator[str]:
    with (
        serving(create_app(VideoSettings(), {"fake": FakeJudge()}), HttpProtocol) as url,
        serving(Gateway({"video": [Replica("video", url, True)]}, LOOPBACK), HttpProtocol) as url,
    ):
        yield url


@pytest.mark.parametrize("server", ["url", "gateway"])
@pytest.mark.parametrize("name", LARGE_HEADS)
def test_headers_of_more_than_64_kib_are_refused(
    request: pytest.FixtureRequest, server: str, name: str
):
    url = request.getfixturevalue(server)
    for is_first in (True, False):
        with connect_to(url) as connection:
            if not is_first:
                connection.sendall(START + b"\r\n")
                assert response(connection)[0] == 200
            path = b"/video/score" if server == "gateway" else b"/score"
            connection.sendall(LARGE_HEADS[name].replace(b"/score", path, 1))
            assert response(connection)[0] == (400 if name == "method" else 431)
            assert has_ended(connection)


@pytest.mark.parametrize("is_slow", [False, True])
def test_headers_of_less_than_64_kib_are_accepted(connect: Connect, is_slow: bool):
    request = START + b"X: " + b"y" * 63 * KIB + b"\r\n\r\n"
    connection = connect()
    for _ in range(3):
        for part in (request[:100], request[100:-2], request[-2:]) if is_slow else (request,):
            connection.sendall(part)
        assert response(connection)[0] == 200


def test_large_headers_behind_other_requests_do_not_take_their_responses(
    connect: Connect, item: bytes
):
    for large in (LARGE_HEADS["one header"], LARGE_HEADS["many headers"]):
        connection = connect()
        connection.sendall(head(len(item)) + item + large)
        status, content = response(connection)
        assert (status, json.loads(content)["status"]) == (200, "ok")
        assert has_ended(connection)


@pytest.mark.slow
def test_headers_may_wait_for_the_response_before_them(
    item: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "_HEADER_SECONDS", 0.2)

    class Judge(FakeJudge):
        async def judge(self, *arguments: Any) -> Judgment:
            judgment = await super().judge(*arguments)
            monkeypatch.setattr(protocol, "_HEADER_SECONDS", 30)  # once they need not wait
            return judgment

    app = create_app(VideoSettings(), {"fake": Judge(wait_s=1)})
    with serving(app, HttpProtocol) as url, connect_to(url) as connection:
        connection.sendall(head(len(item)) + item + head(len(item))[:20])
        assert response(connection)[0] == 200
        connection.sendall(head(len(item))[20:] + item)
        assert response(connection)[0] == 200


@pytest.mark.parametrize("size", ["length", "trailers"])
def test_a_body_of_chunks_without_content_ends_the_connection(connect: Connect, size: str):
    connection = connect()
    connection.sendall(head(None) + (b"0\r\n" if size == "trailers" else b""))
    line = b"X: y\r\n" if size == "trailers" else b"0" * 100
    sent = 0
    with suppress(ConnectionError):
        while sent < 32 * MIB:
            sent += connection.send(line * 1000)
    assert sent < 32 * MIB  # the buffers of sockets, if the service is slow
    assert has_ended(connection)


@pytest.mark.slow
def test_a_caller_that_does_not_read_its_responses_is_disconnected(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "_WRITE_SECONDS", 0.2)
    connection = connect()
    connection.settimeout(0.5)
    disconnected = False
    watch = Stopwatch()
    while not disconnected and watch.seconds < 60:
        try:
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        except TimeoutError:  # the service does not read either
            continue
        except ConnectionError:
            disconnected = True
    assert disconnected


@contextmanager
def _client(app: object) -> Iterator[httpx.Client]:
    with (
        serving(app, HttpProtocol) as url,
        httpx.Client(base_url=url, trust_env=False, verify=False, timeout=15) as client,
    ):
        yield client


def test_bodies_count_by_what_has_arrived(item: bytes, monkeypatch: pytest.MonkeyPatch):
    """Two bodies that are announced, but not sent, leave room for a third one."""
    monkeypatch.setattr(http_body, "_SILENCE_SECONDS", 60)
    monkeypatch.setattr(http_body, "_FIRST_SECONDS", 60)
    monkeypatch.setattr(http_app, "_LARGEST_BODIES", 1.5)
    settings = VideoSettings(max_body_mb=2)
    with _client(create_app(settings, {"fake": FakeJudge()})) as client, ExitStack() as stack:
        large = [stack.enter_context(connect_to(str(client.base_url))) for _ in range(3)]
        for connection in large:
            connection.sendall(head(2 * MIB) + b" " * 1000)

        def admitted() -> float:
            name = "rewardfleet_admitted_requests{"
            lines = client.get("/metrics").text.splitlines()
            return next(float(each.rpartition(" ")[2]) for each in lines if each.startswith(name))

        wait_until(lambda: admitted() == 3)
        answer = client.post("/score", content=item, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        for connection in large[:2]:
            with suppress(ConnectionError):
                connection.sendall(b" " * (2 * MIB - 1001))
        # Together they are too large: the one that would exceed the limit is refused.
        wait_until(lambda: admitted() == 2)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "in parts"])
def test_an_offer_of_another_protocol_is_ignored(
    connect: Connect, item: bytes, is_chunked: bool, is_split: bool
):
    """`curl --http2` sends one with each request; the parser would end the request there."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    body = chunk(item) + b"0\r\n\r\n" if is_chunked else item
    start = head(None if is_chunked else len(item), *offer)
    parts = [start[:40], start[40:], body[:20], body[20:]] if is_split else [start + body]
    connection = connect()
    for _ in range(2):
        for part in parts:
            connection.sendall(part)
            time.sleep(0.01 * is_split)  # a segment of its own, as a rule
        status, answer = response(connection)
        assert (status, json.loads(answer)["status"]) == (200, "ok")


def test_curl_with_http2_keeps_its_body(url: str, item: bytes):
    curl = shutil.which("curl")
    if curl is None or b"HTTP2" not in subprocess.check_output([curl, "--version"]):
        pytest.skip("needs curl with HTTP/2")
    command = [curl, "-sS", "--http2", "--noproxy", "*", "--data-binary", "@-", f"{url}/score"]
    given = [*command, "-H", "Content-Type: application/json"]
    answer = subprocess.check_output(given, input=item, timeout=60)
    assert json.loads(answer)["status"] == "ok"


@pytest.mark.parametrize("offer", ["Upgrade: websocket", "Upgrade: TLS/1.0, h2c"])
def test_the_request_after_an_offer_is_read_as_one(connect: Connect, item: bytes, offer: str):
    connection = connect()
    request = head(len(item), "Connection: keep-alive, upgrade", offer) + item
    last = head(2, "Connection: close") + b"{}"
    connection.sendall(request + head(2) + b"{}" + request + last)
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+) ", received) == [b"200", b"422", b"200", b"422"]
