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


def test_a_missing_file_is_not_found(client, tmp_path):
    check_problem(post_path(client, "none.mp4"), "not_found", "none.mp4", "does not exist")
    check_problem(post_path(client, tmp_path / "none.mp4"), "not_found", "does not exist")


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


def test_a_video_without_frames_is_invalid(client, make_video):
    check_problem(post_path(client, make_video(0)), "invalid", "cannot be decoded")


@pytest.mark.slow
def test_an_8k_video_is_too_large(client, make_video):
    path = make_video(1, width=7680, height=4320)
    check_problem(post_path(client, path), "too_large", "7680x4320", "4096x2304")


@pytest.mark.slow
def test_a_video_of_too_many_frames_is_too_large(client, make_video):
    path = make_video(20_001, width=16, height=16)
    check_problem(post_path(client, path), "too_large", "20001 frames", "at most 20000")


def test_a_video_with_fewer_frames_than_it_states_is_invalid(client, make_video):
    path = make_video(20, name="clip.avi", codec="MJPG")
    content = bytearray(path.read_bytes())
    header = content.index(b"avih") + 8
    stream = content.index(b"strh") + 8

    def state(frames: int) -> httpx.Response:
        content[header + 16 : header + 20] = frames.to_bytes(4, "little")
        content[stream + 32 : stream + 36] = frames.to_bytes(4, "little")
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
    check_problem(post_path(client, "large.mp4"), "too_large", "1 MiB")
    sent = base64.b64encode(content).decode()
    answer = client.post("/score", json={"task_text": TASK, "video_base64": sent})
    check_problem(answer, "too_large", "1 MiB")
    files = {"video": ("large.mp4", content)}
    check_problem(
        client.post("/score", data={"task_text": TASK}, files=files), "too_large", "1 MiB"
    )


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
    check_problem(post_path(client, path), "forbidden", repr(path), "--video-root")
    outside.unlink()
    check_problem(post_path(client, path), "forbidden", repr(path), "--video-root")


def test_a_symlink_redirected_outside_the_roots_after_a_request_is_forbidden(serve, tmp_path):
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


def test_a_symlink_within_the_roots_is_accepted(client, tmp_path):
    (tmp_path / "valid.mp4").write_bytes(LONG_CLIP.read_bytes())
    (tmp_path / "link.mp4").symlink_to(tmp_path / "valid.mp4")
    assert post_path(client, tmp_path / "link.mp4").status_code == 200


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


@pytest.mark.parametrize("path", ["a\0b", "valid.mp4\0.txt", "\0"])
def test_a_nul_in_a_path_is_invalid(client, path):
    check_problem(post_path(client, path), "invalid", "NUL")


def test_a_path_that_is_too_long_is_invalid(client):
    check_problem(post_path(client, "a" * 5000), "invalid", "video_path", "4096")
    check_problem(post_path(client, "a" * 300), "invalid", "cannot be opened")


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


def test_an_image_that_would_decode_to_gigabytes_is_too_large(client):
    bomb = base64.b64encode(_png_header(60_000, 60_000)).decode()
    check_problem(post_score(client, frames_base64=[bomb]), "too_large", "60000x60000")


def test_an_image_whose_chunk_claims_gigabytes_is_invalid(client):
    """The decoder would allocate them."""
    content = base64.b64decode(image_base64(kind=".png"))
    start = content.index(b"IDAT") - 4
    huge = content[:start] + (0x7FFFFFF7).to_bytes(4, "big") + content[start + 4 :]
    answer = post_score(client, frames_base64=[base64.b64encode(huge).decode()])
    check_problem(answer, "invalid", "damaged or truncated")


def test_images_above_the_pixel_limit_are_too_large(client):
    answer = post_score(client, frames_base64=[image_base64(5000, 2000)])
    check_problem(answer, "too_large", "5000x2000", "4096x2304")


def _png_header(width: int, height: int) -> bytes:
    encoded = base64.b64decode(image_base64(kind=".png"))
    header = encoded[12:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + encoded[24:29]
    return encoded[:12] + header + zlib.crc32(header).to_bytes(4, "big") + encoded[33:]


# Fields


@pytest.mark.parametrize(
    ("fields", "detail"),
    [*table("invalid_fields"), ({"task_text": "x" * 4097}, "4096")],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_an_invalid_field_is_named(client, fields, detail):
    check_problem(post_score(client, **fields), "invalid", detail)


# Bodies


def post_raw(client: httpx.Client, content: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return client.post("/score", content=content, headers=headers)


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
    check_problem(post_raw(client, content), "invalid")


def test_a_body_without_a_length_is_rejected_at_the_limit(serve):
    client = serve(max_body_mb=1)

    def endless():
        for _ in range(64):
            yield b"x" * 2**16

    answer = client.post("/score", content=endless(), headers=JSON)
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


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_rejected(client, content_type):
    headers = {"content-type": content_type}
    answer = client.post("/score", content=b"{}", headers=headers)
    check_problem(answer, "invalid", "Content-Type: application/json")


def test_a_compressed_body_is_rejected(client):
    answer = post_raw(client, b"{}", **{"content-encoding": "gzip"})
    check_problem(answer, "invalid", "Content-Encoding")
