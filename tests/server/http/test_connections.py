"""Connections that make no progress: they end, and others do not notice them."""

import json
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

from rewardfleet_server.http import app as http_app
from rewardfleet_server.http import body as http_body
from rewardfleet_server.http import server
from rewardfleet_server.http.server import GracefulServer, OrderlyConnections
from rewardfleet_server.testing import FakeJudge, serving, wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import client_of, image_base64
from ..processes import idle_seconds, service_process, watched
from .raw import chunk, connect_to, has_ended, head, response
from .test_requests import metric

MIB = 2**20
Connect = Callable[[], socket.socket]


@pytest.fixture
def url() -> Iterator[str]:
    """Serve the video service in this process, where its time limits can be changed."""
    app = create_app(VideoSettings(max_body_mb=4), {"fake": FakeJudge()})
    with serving(OrderlyConnections(app)) as url:
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
            work = partial(pool.map, post, range(40))
            statuses, watch = watched(url, process.pid, lambda: {*work()}, most_seconds=idle + 0.25)
        assert statuses == {422}  # read, and without a response
        assert watch.slowest < idle + 0.25


def test_a_refusal_is_followed_by_the_next_request_if_the_body_is_small(
    connect: Connect, item: bytes
):
    """Otherwise, callers that send all of a request would lose their connection at each 401."""
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
    monkeypatch.setattr(server, "_DISCARD_SECONDS", 60 if is_complete else 0.5)
    size = MIB // 4
    with connect() as connection:
        connection.sendall(head(size, "Connection: close", path="/nowhere") + b" " * (size - 9))
        if is_complete:
            connection.sendall(b" " * 9)
        status, content = response(connection)
        assert (status, json.loads(content)["kind"]) == (404, "not_found")
        assert connection.recv(1) == b"", "the end, and no reset"


@pytest.mark.parametrize("length", [None, 20 * MIB], ids=["chunks", "large"])
def test_a_refused_body_that_stalls_ends_the_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, length: int | None
):
    monkeypatch.setattr(server, "_DISCARD_SECONDS", 0.1)
    connection = connect()
    connection.sendall(head(length, "Content-Encoding: gzip"))
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


@pytest.mark.slow
def test_a_caller_that_does_not_read_its_response_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "_UNREAD_SECONDS", 1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(64 * MIB)})

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        running = GracefulServer(app, handles_signals=False)
        pool.submit(running.run, [listener])
        wait_until(lambda: running.started)
        with socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: running.server_state.total_requests == 1)
            wait_until(lambda: not running.server_state.connections)
        running.should_exit = True


def test_bodies_count_by_what_has_arrived(item: bytes, monkeypatch: pytest.MonkeyPatch):
    """Two bodies that are announced, but not sent, leave room for a third one."""
    monkeypatch.setattr(http_body, "_SILENCE_SECONDS", 60)
    monkeypatch.setattr(http_body, "_FIRST_SECONDS", 60)
    monkeypatch.setattr(http_app, "_LARGEST_BODIES", 1.5)
    settings = VideoSettings(max_body_mb=2)
    app = OrderlyConnections(create_app(settings, {"fake": FakeJudge()}))
    with client_of(app) as client, ExitStack() as stack:
        large = [stack.enter_context(connect_to(str(client.base_url))) for _ in range(3)]
        for connection in large:
            connection.sendall(head(2 * MIB) + b" " * 1000)

        admitted = "rewardfleet_admitted_requests{"
        wait_until(lambda: metric(client, admitted) == 3)
        answer = client.post("/score", content=item, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        for connection in large[:2]:
            with suppress(ConnectionError):
                connection.sendall(b" " * (2 * MIB - 1001))
        # Together they are too large: the one that would exceed the limit is refused.
        wait_until(lambda: metric(client, admitted) == 2)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "in parts"])
@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0, h2c"])
def test_a_request_that_offers_another_protocol_is_refused(
    connect: Connect, item: bytes, offer: str, is_chunked: bool, is_split: bool
):
    """Its body would be lost, or be the next request."""
    body = chunk(item) + b"0\r\n\r\n" if is_chunked else item
    offered = (f"Upgrade: {offer}", "Connection: keep-alive, Upgrade")
    start = head(None if is_chunked else len(item), *offered)
    connection = connect()
    for part in (start, body) if is_split else (start + body,):
        connection.sendall(part)
    status, answer = response(connection)
    problem = json.loads(answer)
    assert (status, problem["kind"], "`Upgrade`" in problem["detail"]) == (422, "invalid", True)
    assert has_ended(connection)
