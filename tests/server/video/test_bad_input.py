"""Invalid input gets a clear error and the right status, and the service continues to score."""

import base64
import contextlib
import json
import os
import socket
import threading
import zlib
from collections.abc import Iterator

import httpx
import pytest

from rewardfleet.wire.errors import ERRORS, ErrorKind
from rewardfleet_server.http import server as server_module
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import JSON, LONG_CLIP, image_base64, served, table

TASK = "put the bowl on the plate"


@pytest.fixture(scope="module")
def one_service(tmp_path_factory: pytest.TempPathFactory):
    """One service for all tests of this file; it may read every test's folder."""
    root = tmp_path_factory.getbasetemp()
    (root / "valid.mp4").write_bytes(LONG_CLIP.read_bytes())
    with served(video_root=[root]) as client:
        yield client


@pytest.fixture
def client(one_service: httpx.Client):
    """A service that must still score after the test."""
    yield one_service
    answer = one_service.post("/score", json={"task_text": TASK, "video_path": "valid.mp4"})
    assert answer.status_code == 200, "the service no longer scores"


def check_problem(answer: httpx.Response, kind: str, *details: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["kind"] == kind, problem
    assert answer.status_code == problem["status"] == ERRORS[ErrorKind(kind)].status
    for detail in details:
        assert detail in problem["detail"]
    assert "Traceback" not in answer.text and 'File "' not in answer.text
    assert len(answer.text) < 2000
    assert problem["request_id"] == answer.headers["x-request-id"]


def post_path(client: httpx.Client, path: object) -> httpx.Response:
    return client.post("/score", json={"task_text": TASK, "video_path": str(path)})


def post_score(client: httpx.Client, **fields: object) -> httpx.Response:
    body = {"task_text": TASK, "frames_base64": [image_base64()], **fields}
    return client.post("/score", json=body)


# Files


@pytest.mark.parametrize(
    ("path", "kind", "details"),
    [
        ("none.mp4", "not_found", ["none.mp4", "does not exist"]),
        ("{folder}/none.mp4", "not_found", ["does not exist"]),
        *((path, "invalid", ["NUL"]) for path in ("a\0b", "valid.mp4\0.txt", "\0")),
        ("a" * 5000, "invalid", ["video_path", "4096"]),
        ("a" * 300, "invalid", ["cannot be opened"]),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, str) else None,
)
def test_a_path_of_no_file_is_refused(client, tmp_path, path, kind, details):
    check_problem(post_path(client, path.replace("{folder}", str(tmp_path))), kind, *details)


def test_a_file_that_the_service_may_not_read_is_forbidden(serve, tmp_path):
    """The service runs as another user here, because permissions do not apply to root."""
    path = tmp_path / "secret.mp4"
    path.write_bytes(LONG_CLIP.read_bytes())
    path.chmod(0)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    client = serve()
    client.get("/healthz")  # imports what the other user may not be able to read
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)  # the server is a thread of this process
    try:
        check_problem(post_path(client, path), "forbidden", "may not be read by the service")
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "is empty"),
        (b"this is a text, not a video", "is not a video"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "is not a video"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "is not a video"),
        (b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 100, "cannot be decoded"),
        (LONG_CLIP.read_bytes()[:1000], "truncated"),
        (LONG_CLIP.read_bytes()[:-1000], "truncated"),
        (LONG_CLIP.read_bytes()[:-1000] + b"\x00" * 1000, "decode"),
    ],
    ids=["empty", "text", "playlist", "concat", "header-only", "cut-early", "cut-late", "no-index"],
)
def test_a_file_that_is_not_a_complete_video_is_invalid(client, tmp_path, content, detail):
    (tmp_path / "invalid.mp4").write_bytes(content)
    check_problem(post_path(client, tmp_path / "invalid.mp4"), "invalid", detail)
    sent = base64.b64encode(content).decode()
    answer = client.post("/score", json={"task_text": TASK, "video_base64": sent})
    check_problem(answer, "invalid", detail if content else "video_base64")


@pytest.mark.slow
def test_a_video_without_frames_or_with_too_many_or_too_large_ones_is_refused(client, make_video):
    for count, width, height, kind, *details in (
        (0, 64, 48, "invalid", "cannot be decoded"),
        (1, 7680, 4320, "too_large", "7680x4320", "4096x2304"),
        (20_001, 16, 16, "too_large", "20001 frames", "at most 20000"),
    ):
        path = make_video(count, width=width, height=height)
        check_problem(post_path(client, path), kind, *details)


def test_a_video_with_fewer_frames_than_it_states_is_invalid(client, make_video):
    path = make_video(20, name="clip.avi", codec="MJPG")
    content = bytearray(path.read_bytes())
    places = content.index(b"avih") + 24, content.index(b"strh") + 40

    def state(frames: int) -> httpx.Response:
        for at in places:
            content[at : at + 4] = frames.to_bytes(4, "little")
        path.write_bytes(content)
        return post_path(client, path)

    check_problem(state(200), "invalid", "it states 10.00 s, and its frames last 1.00 s")
    for fewer in (0, 5):  # all are decoded
        answer = state(fewer)
        assert answer.status_code == 200, answer.text
        assert answer.json()["provenance"]["frames"]["total"] == 20


@pytest.mark.slow
def test_a_video_above_the_size_limit_is_too_large_from_any_source(serve, tmp_path):
    client = serve(max_body_mb=1)
    content = LONG_CLIP.read_bytes() + b"\x00" * 2**20
    (tmp_path / "large.mp4").write_bytes(content)
    sent = {"task_text": TASK, "video_base64": base64.b64encode(content).decode()}
    for answer in (
        post_path(client, "large.mp4"),
        client.post("/score", json=sent),
        client.post("/score", data={"task_text": TASK}, files={"video": ("large.mp4", content)}),
    ):
        check_problem(answer, "too_large", "1 MiB")


@pytest.mark.parametrize(
    "path", ["../outside.mp4", "a/../../outside.mp4", "{outside}", "/etc/passwd", "/", "..", "link"]
)
def test_a_path_outside_the_roots_is_forbidden(serve, tmp_path, path):
    """By `..`, absolute, or through a symlink; with the same message whether it exists or not."""
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside.mp4"
    outside.write_bytes(LONG_CLIP.read_bytes())
    (root / "link").symlink_to(outside)
    client = serve(video_root=[root])
    path = path.format(outside=outside)
    for _ in range(2):
        check_problem(post_path(client, path), "forbidden", repr(path), "--video-root")
        outside.unlink(missing_ok=True)


def test_a_symlink_may_not_be_redirected_outside_the_roots_after_a_request(serve, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside.mp4").write_bytes(LONG_CLIP.read_bytes())
    os.utime(root / "inside.mp4", (1, 1))
    (tmp_path / "outside.mp4").write_bytes(LONG_CLIP.read_bytes() + b"\x00")
    (root / "link").symlink_to(root / "inside.mp4")
    client = serve(video_root=[root])
    assert post_path(client, "link").status_code == 200
    (root / "link").unlink()
    (root / "link").symlink_to(tmp_path / "outside.mp4")
    check_problem(post_path(client, "link"), "forbidden")


def test_a_service_without_roots_accepts_no_path(serve):
    answer = post_path(serve(video_root=[]), LONG_CLIP)
    check_problem(answer, "forbidden", "--video-root", "frames_base64")


def test_special_files_are_invalid(serve, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "fifo")
    (root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    client = serve(video_root=[root, "/dev"])
    for path in ("fifo", "socket", "/dev/null", "/dev/zero"):
        check_problem(post_path(client, path), "invalid", "not a regular file")
    check_problem(post_path(client, "folder"), "invalid", "is a folder")


def test_a_file_that_changes_after_a_request_is_read_again(client, make_video):
    """The stored digest of the old content is not used."""
    path = make_video(7)
    os.utime(path, (1, 1))
    assert post_path(client, path).json()["cached"] is False
    assert post_path(client, path).json()["cached"] is True
    path.write_bytes(b"no video")
    check_problem(post_path(client, path), "invalid", "not a video")


# Images


@pytest.mark.parametrize(
    ("frames", "detail"),
    [
        (["%%%"], "valid base64"),
        (["data:image/png;base64," + image_base64()], "data:"),
        ([""], "not a JPEG or PNG image"),
        ([base64.b64encode(b"GIF89a" + b"\x00" * 50).decode()], "not a JPEG or PNG image"),
        ([base64.b64encode(base64.b64decode(image_base64())[:200]).decode()], "frames_base64[0]"),
        ([base64.b64encode(base64.b64decode(image_base64(kind=".png"))[:60]).decode()], "[0]"),
        ([image_base64(), base64.b64encode(b"no image").decode()], "frames_base64[1]"),
        ([image_base64(32, 24), image_base64(64, 48)], "differ in size (32x24 and 64x48)"),
        ([image_base64(), 7], "frames_base64.1"),
        ([], "frames_base64"),
        ([image_base64()] * 1025, "1024"),
        ("text", "frames_base64"),
    ],
    ids=lambda value: None if isinstance(value, list) else value.replace(" ", "-"),
)
def test_frames_that_are_not_images_are_invalid(client, frames, detail):
    answer = post_score(client, frames_base64=frames)
    check_problem(answer, "invalid")
    assert detail.lower() in answer.json()["detail"].lower()


def test_images_that_are_too_large_or_claim_to_be_are_refused(client):
    """The decoder would allocate what a chunk claims."""
    png = base64.b64decode(image_base64(kind=".png"))
    header = png[12:16] + (60_000).to_bytes(4, "big") * 2 + png[24:29]
    bomb = png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]
    start = png.index(b"IDAT") - 4
    huge = png[:start] + (0x7FFFFFF7).to_bytes(4, "big") + png[start + 4 :]
    for image, kind, *details in (
        (base64.b64encode(bomb).decode(), "too_large", "60000x60000"),
        (base64.b64encode(huge).decode(), "invalid", "damaged or truncated"),
        (image_base64(5000, 2000), "too_large", "5000x2000", "4096x2304"),
    ):
        check_problem(post_score(client, frames_base64=[image]), kind, *details)


# Fields


@pytest.mark.parametrize(
    ("fields", "detail"),
    [*table("invalid_fields"), ({"task_text": "x" * 4097}, "4096")],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_an_invalid_field_is_named(client, fields, detail):
    check_problem(post_score(client, **fields), "invalid", detail)


# Bodies


@pytest.mark.parametrize(
    "content",
    [
        *map(str.encode, table("invalid_json")),
        b"\xff\xfe",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"backend_kwargs": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_an_invalid_json_body_is_rejected(client, content):
    check_problem(client.post("/score", content=content, headers=JSON), "invalid")


def test_a_body_without_a_length_is_rejected_at_the_limit(serve):
    chunks = (b"x" * 2**16 for _ in range(64))
    answer = serve(max_body_mb=1).post("/score", content=chunks, headers=JSON)
    check_problem(answer, "too_large", "1 MiB")


@contextlib.contextmanager
def complete_server() -> Iterator[int]:
    """Run the server as the command does; yield its port."""
    settings = VideoSettings(port=0)
    server = Server(create_app(settings, {"fake": FakeJudge()}), settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stalled",
    [b"", b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"],
    ids=["idle", "body that is not read"],
)
def test_a_connection_that_stalls_after_a_response_is_closed(
    monkeypatch: pytest.MonkeyPatch, stalled: bytes
):
    monkeypatch.setattr(server_module, "_KEEP_ALIVE_SECONDS", 0.5)

    def is_answered(connection: socket.socket) -> bool:
        try:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(65536).startswith(b"HTTP/1.1 200")
        except (BrokenPipeError, ConnectionResetError):
            return False

    with complete_server() as port:
        for _ in range(10):  # this thread may have been paused for longer than the time limit
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(8)
                # A request in time is answered, and the time limit starts again.
                if not (is_answered(connection) and is_answered(connection)):
                    continue
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is closed
                    connection.sendall(stalled)
                    while connection.recv(65536):
                        pass  # the response to what was stalled; b"" is the end
                return
    pytest.fail("no second request was answered")


def test_a_body_of_another_type_or_encoding_is_rejected(client):
    for given, detail in (
        *(({"content-type": t}, "Content-Type: application/json") for t in ("text/plain", "")),
        ({"content-type": "application/x-www-form-urlencoded"}, "Content-Type: application/json"),
        ({**JSON, "content-encoding": "gzip"}, "Content-Encoding"),
    ):
        check_problem(client.post("/score", content=b"{}", headers=given), "invalid", detail)
