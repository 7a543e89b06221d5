"""Uploads and URLs as sources of a video."""

import asyncio
import base64
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
import trustme

from rewardfleet.tls import tls_context
from rewardfleet.wire.errors import BackendFailed, DeadlineExceeded, RewardFleetError
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.clip import fetch
from rewardfleet_server.video.clip.fetch import Fetcher, is_public

from ...conftest import LONG_CLIP, served, table
from ...measure import Stopwatch

TASK = "put the bowl on the plate"
VIDEO = LONG_CLIP.read_bytes()


@pytest.fixture(scope="module")
def judge() -> FakeJudge:
    return FakeJudge()


@pytest.fixture(scope="module")
def client(judge: FakeJudge) -> Iterator[httpx.Client]:
    with served(judge, max_body_mb=8) as client:
        yield client


def upload(client: httpx.Client, content: bytes = VIDEO, **fields: str) -> httpx.Response:
    files = {"video": ("clip.mp4", content, "video/mp4")}
    return client.post("/score", data={"task_text": TASK, **fields}, files=files)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_upload_shares_cached_scores_with_the_same_file_as_bytes(client, judge):
    judged = len(judge.seen)
    first = upload(client, nframes="7.0", backend_kwargs="{}").json()
    assert (first["score"], first["status"], first["cached"]) == (1.0, "ok", False)
    assert len(first["provenance"]["frames"]["indices"]) == 7
    sent = base64.b64encode(VIDEO).decode()
    body = {"task_text": TASK, "video_base64": sent, "nframes": 7}
    assert client.post("/score", json=body).json()["cached"] is True
    assert upload(client, nframes="7").json()["cached"] is True
    assert len(judge.seen) == judged + 1


@pytest.mark.slow
def test_an_upload_leaves_no_open_file(client, tmp_path):
    upload(client)
    before = open_files()
    for index in range(20):
        upload(client, max_pixels=str(1000 + index))
        upload(client, b"not a video")
    wait_until(lambda: open_files() <= before + 2)


@pytest.mark.parametrize(("fields", "detail"), table("invalid_form_fields"))
def test_form_fields_are_validated_like_json(client, fields, detail):
    answer = upload(client, **fields)
    assert answer.status_code == 422
    assert detail in answer.json()["detail"]


PART = 'Content-Disposition: form-data; name="{}"'


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        *table("invalid_forms"),
        (f"--x\r\n{PART.format('f')}\r\n\r\na\r\n" * 100 + "--x--", ""),
        (f"--x\r\n{PART.format('task_text')}\r\n\r\n{'a' * 100_000}\r\n--x--", ""),
    ],
)
def test_an_invalid_form_or_one_without_a_file_is_rejected(client, content, detail):
    for boundary in ("; boundary=x", "") if not detail else ("; boundary=x",):
        headers = {"content-type": f"multipart/form-data{boundary}"}
        answer = client.post("/score", content=content.encode(), headers=headers)
        assert answer.status_code == 422, answer.text
        assert detail in answer.json()["detail"]


def test_a_batch_does_not_accept_a_form(client):
    answer = client.post("/score/batch", files={"video": ("a.mp4", VIDEO)})
    assert answer.status_code == 422 and "application/json" in answer.json()["detail"]


def test_an_aborted_upload_leaves_no_open_file(client):
    before = open_files()
    head = f'--x\r\n{PART.format("video")}; filename="a.mp4"\r\n\r\n'.encode()
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(
            b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + head + VIDEO
        )
        wait_until(lambda: 'admitted_requests{service="video"} 1.0' in client.get("/metrics").text)
    wait_until(lambda: 'admitted_requests{service="video"} 0.0' in client.get("/metrics").text)
    wait_until(lambda: open_files() <= before + 2)


def test_forms_from_web_pages_of_other_origins_are_forbidden(client):
    """Browsers send the page's origin in the header `Origin`."""
    files = {"video": ("clip.mp4", VIDEO)}
    own = str(client.base_url).rstrip("/")
    for origin, status in (("https://evil.example", 403), ("null", 403), (own, 200)):
        form = {"data": {"task_text": TASK}, "files": files, "headers": {"origin": origin}}
        assert client.post("/score", **form).status_code == status


# URLs


def test_urls_that_are_not_allowed(client):
    """By default none is."""
    hosts = ["localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1"]
    with served(video_url_host=hosts) as allowing:
        rows = [(allowing, *each) for each in table("forbidden_urls")]
        for asked, url, detail in [(client, "https://a.example/a.mp4", "video_url_host"), *rows]:
            answer = asked.post("/score", json={"task_text": TASK, "video_url": url})
            assert answer.status_code in {403, 422}
            assert detail in answer.json()["detail"]


@pytest.mark.parametrize(("address", "expected"), table("public_addresses"))
def test_which_addresses_are_public(address, expected):
    assert is_public(ip_address(address)) is expected


def test_a_full_disk_is_a_failure_that_may_pass(serve, monkeypatch: pytest.MonkeyPatch):
    client = serve()
    item = {"task_text": "x", "video_base64": base64.b64encode(VIDEO).decode()}
    with monkeypatch.context() as patch:
        full = "/dev/full"
        patch.setattr("tempfile.TemporaryFile", lambda *_, **__: os.fdopen(os.open(full, 2), "w+b"))
        answers = [client.post("/score", json=item), upload(client)]
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, problem["kind"]) == (503, "unavailable")
        assert problem["retryable"] and float(answer.headers["retry-after"]) > 0
    assert client.post("/score", json=item).status_code == 200


class Site(ThreadingHTTPServer):
    """An https server on loopback with a video, redirects and failures."""

    daemon_threads = True

    def __init__(self, certificate: trustme.LeafCert) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.requests: list[tuple[str, str | None]] = []
        self.ended = threading.Event()

    def handle_error(self, request, client_address) -> None:
        pass  # disconnects are part of the tests


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("host")))
        url = f"example:{self.server.server_address[1]}"
        moved = {
            "/loop": f"https://site.{url}/loop",
            "/moved": "/a.mp4",
            "/internal": f"https://internal.{url}/a.mp4",
            "/http": f"http://site.{url}/a.mp4",
        }
        found = {"/a.mp4": (200, VIDEO), "/large": (200, bytes(3_000_000)), "/broken": (500, b"")}
        if self.path == "/trickle":
            self.send_response(200)
            self.end_headers()
            while not self.server.ended.wait(0.2):
                self.wfile.write(b"x")
        elif self.path in moved:
            self._send(302, b"", location=moved[self.path])
        else:
            self._send(*found.get(self.path, (404, b"")))

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site(ca_file: Path) -> Iterator[Site]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(ca_file)
    server = Site(authority.issue_cert("site.example", "internal.example"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def fetched_site(monkeypatch, tmp_path: Path):
    """A site, and a function that fetches from it; its names resolve to loopback addresses."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with site(tmp_path / "ca.pem") as server:
        loop_lookup = asyncio.base_events.BaseEventLoop.getaddrinfo

        async def lookup(loop, host, port, **options):
            found = {"site.example": "127.0.0.1", "internal.example": "127.0.0.2"}.get(host, host)
            return await loop_lookup(loop, found, port, **options)

        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", lookup)
        monkeypatch.setattr(fetch, "is_public", lambda address: str(address) == "127.0.0.1")

        async def fetch_path(path: str) -> bytes:
            tls_context.cache_clear()
            fetcher = Fetcher(["site.example", "internal.example"], max_bytes=2_000_000)
            url = f"https://site.example:{server.server_address[1]}{path}"
            try:
                file = await fetcher.fetch(url)
                return Path(file.path).read_bytes()
            finally:
                await fetcher.aclose()

        yield server, fetch_path
        tls_context.cache_clear()


async def test_a_video_is_fetched_from_the_address_that_was_checked(fetched_site):
    server, fetch_path = fetched_site
    assert await fetch_path("/a.mp4") == VIDEO
    assert await fetch_path("/moved") == VIDEO
    [host] = {host for _, host in server.requests}
    assert host == f"site.example:{server.server_address[1]}"


@pytest.mark.parametrize(("path", "kind"), table("failing_fetches"))
async def test_failures_of_a_fetch_are_typed(fetched_site, path, kind):
    _, fetch_path = fetched_site
    with pytest.raises(RewardFleetError) as failure:
        await fetch_path(path)
    assert failure.value.kind == kind


@pytest.mark.slow
async def test_a_server_that_sends_slowly_exceeds_the_deadline(fetched_site, monkeypatch):
    _, fetch_path = fetched_site
    monkeypatch.setattr(fetch, "_SECONDS", 0.5)
    watch = Stopwatch()
    with pytest.raises(DeadlineExceeded):
        await fetch_path("/trickle")
    assert watch.seconds < 15  # a machine under load; the default is 30


async def test_a_server_with_an_untrusted_certificate_is_rejected(fetched_site, monkeypatch):
    _, fetch_path = fetched_site
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(BackendFailed, match="its certificate is refused"):
        await fetch_path("/a.mp4")
