"""Bad input gets its own clear problem, the right status, and harms nobody. Over real HTTP."""

import base64
import contextlib
import json
import os
import socket
import threading
import zlib

import cv2
import httpx
import numpy as np
import pytest

from rewardfleet.wire.errors import STATUS, ErrorKind
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import LONG_CLIP, picture, served

TASK = "put the bowl on the plate"


@pytest.fixture(scope="module")
def one_service(tmp_path_factory: pytest.TempPathFactory):
    """One service for all that is thrown at it; it reads every test's folder."""
    root = tmp_path_factory.getbasetemp()
    (root / "good.mp4").write_bytes(LONG_CLIP.read_bytes())
    with served(video_root=[root]) as client:
        yield client


@pytest.fixture
def client(one_service: httpx.Client):
    """A service that must still score when the test is over."""
    yield one_service
    answer = one_service.post("/score", json={"task_text": TASK, "video_path": "good.mp4"})
    assert answer.status_code == 200, "the service no longer scores"


def check_problem(answer: httpx.Response, kind: str, *said: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["kind"] == kind, problem
    assert answer.status_code == problem["status"] == STATUS[ErrorKind(kind)]
    for words in said:
        assert words in problem["detail"]
    assert "Traceback" not in answer.text and 'File "' not in answer.text
    assert len(answer.text) < 2000
    assert problem["request_id"] == answer.headers["x-request-id"]


def ask_path(client: httpx.Client, path: object) -> httpx.Response:
    return client.post("/score", json={"task_text": TASK, "video_path": str(path)})


def ask(client: httpx.Client, **fields: object) -> httpx.Response:
    body = {"task_text": TASK, "frames_base64": [picture()], **fields}
    return client.post("/score", json=body)


# Files


def test_a_missing_file(client, tmp_path):
    check_problem(ask_path(client, "none.mp4"), "not_found", "none.mp4", "does not exist")
    check_problem(ask_path(client, tmp_path / "none.mp4"), "not_found", "does not exist")


def test_a_file_that_the_service_may_not_read(serve, tmp_path):
    """As another user, whom permissions hold even where the tests are run by root."""
    path = tmp_path / "secret.mp4"
    path.write_bytes(LONG_CLIP.read_bytes())
    path.chmod(0)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    client = serve()
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)  # the server is a thread of this process
    try:
        check_problem(ask_path(client, path), "forbidden", "may not be read by the service")
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_a_file_that_is_no_whole_video(client, tmp_path, content, said):
    (tmp_path / "bad.mp4").write_bytes(content)
    check_problem(ask_path(client, tmp_path / "bad.mp4"), "invalid", said)
    sent = base64.b64encode(content).decode()
    answer = client.post("/score", json={"task_text": TASK, "video_base64": sent})
    check_problem(answer, "invalid", said if content else "video_base64")


def test_a_video_that_ends_before_its_promise(client, tmp_path):
    """The index stands in front, as a streaming file has it; the pictures end half-way."""
    avi = tmp_path / "long.avi"
    writer = cv2.VideoWriter(str(avi), cv2.VideoWriter.fourcc(*"MJPG"), 20.0, (64, 48))
    for index in range(100):
        writer.write(np.full((48, 64, 3), index, np.uint8))
    writer.release()
    content = avi.read_bytes()
    (tmp_path / "half.avi").write_bytes(content[: len(content) // 2])
    check_problem(ask_path(client, tmp_path / "half.avi"), "invalid", "truncated")


def test_a_video_without_frames(client, make_video):
    check_problem(ask_path(client, make_video(0)), "invalid", "cannot be decoded")


def test_an_8k_video(client, tmp_path):
    path = tmp_path / "8k.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 20.0, (7680, 4320))
    writer.write(np.zeros((4320, 7680, 3), np.uint8))
    writer.release()
    check_problem(ask_path(client, path), "too_large", "7680x4320", "4096x2304")


def test_a_video_of_too_many_frames(serve, make_video, monkeypatch):
    client = serve()
    monkeypatch.setattr("rewardfleet_server.video.frames.MAX_SOURCE_FRAMES", 30)
    check_problem(ask_path(client, make_video(31)), "too_large", "31 frames", "at most 30")


def test_a_video_whose_length_is_only_guessed_is_decoded_whole(client, make_video):
    """OpenCV guesses how many frames an AVI has from its rate; here it says ten times as many."""
    path = make_video(20, name="clip.avi", codec="MJPG")
    content = bytearray(path.read_bytes())
    header = content.index(b"avih") + 8
    content[header + 16 : header + 20] = (200).to_bytes(4, "little")
    stream = content.index(b"strh") + 8
    content[stream + 32 : stream + 36] = (200).to_bytes(4, "little")
    path.write_bytes(content)
    answer = ask_path(client, path)
    assert answer.status_code == 200, answer.text
    assert answer.json()["provenance"]["frames"]["total"] == 20


def test_a_video_past_the_size_limit_whichever_way_it_comes(serve, tmp_path):
    client = serve(max_video_mb=1)
    content = LONG_CLIP.read_bytes() + b"\x00" * 2**20
    (tmp_path / "large.mp4").write_bytes(content)
    check_problem(ask_path(client, "large.mp4"), "too_large", "1 MiB")
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
def test_a_path_outside_the_roots(serve, tmp_path, path):
    """By `..`, absolute, or through a symlink; whether it exists or not, in the same words."""
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside.mp4"
    outside.write_bytes(LONG_CLIP.read_bytes())
    (root / "link").symlink_to(outside)
    client = serve(video_root=[root])
    path = path.format(outside=outside)
    check_problem(ask_path(client, path), "forbidden", repr(path), "--video-root")
    outside.unlink()
    check_problem(ask_path(client, path), "forbidden", repr(path), "--video-root")


def test_a_symlink_that_is_turned_outward_after_it_was_read(serve, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside.mp4").write_bytes(LONG_CLIP.read_bytes())
    os.utime(root / "inside.mp4", (1, 1))
    (tmp_path / "outside.mp4").write_bytes(LONG_CLIP.read_bytes() + b"\x00")
    (root / "link").symlink_to(root / "inside.mp4")
    client = serve(video_root=[root])
    assert ask_path(client, "link").status_code == 200
    (root / "link").unlink()
    (root / "link").symlink_to(tmp_path / "outside.mp4")
    check_problem(ask_path(client, "link"), "forbidden")


def test_a_symlink_within_the_roots_is_fine(client, tmp_path):
    (tmp_path / "good.mp4").write_bytes(LONG_CLIP.read_bytes())
    (tmp_path / "link.mp4").symlink_to(tmp_path / "good.mp4")
    assert ask_path(client, tmp_path / "link.mp4").status_code == 200


def test_a_service_without_roots_reads_no_path(serve):
    answer = ask_path(serve(video_root=[]), LONG_CLIP)
    check_problem(answer, "forbidden", "--video-root", "frames_base64")


def test_a_fifo_a_device_a_folder_a_socket(serve, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "fifo")
    (root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    client = serve(video_root=[root, "/dev"])
    for path in ("fifo", "socket", "/dev/null", "/dev/zero"):
        check_problem(ask_path(client, path), "invalid", "not a regular file")
    check_problem(ask_path(client, "folder"), "invalid", "is a folder")


@pytest.mark.parametrize("path", ["a\0b", "good.mp4\0.txt", "\0"])
def test_a_nul_in_a_path(client, path):
    check_problem(ask_path(client, path), "invalid", "NUL")


def test_a_path_that_is_too_long(client):
    check_problem(ask_path(client, "a" * 5000), "invalid", "video_path", "4096")
    check_problem(ask_path(client, "a" * 300), "invalid", "cannot be opened")


def test_a_file_that_changes_between_two_looks(client, make_video):
    """Its new content is judged, not what is remembered of the old one."""
    path = make_video(7)
    os.utime(path, (1, 1))
    assert ask_path(client, path).json()["cached"] is False
    assert ask_path(client, path).json()["cached"] is True
    path.write_bytes(b"no video")
    check_problem(ask_path(client, path), "invalid", "not a video")


# Pictures


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (["%%%"], "valid base64"),
        (["data:image/png;base64," + picture()], "data:"),
        ([""], "no JPEG or PNG"),
        ([base64.b64encode(b"GIF89a" + b"\x00" * 50).decode()], "no JPEG or PNG"),
        ([base64.b64encode(base64.b64decode(picture())[:200]).decode()], "frames_base64[0]"),
        ([base64.b64encode(base64.b64decode(picture(kind=".png"))[:60]).decode()], "[0]"),
        ([picture(), base64.b64encode(b"no picture").decode()], "frames_base64[1]"),
        ([picture(32, 24), picture(64, 48)], "differ in size (32x24 and 64x48)"),
        ([picture(), 7], "frames_base64.1"),
        ([], "frames_base64"),
        ([picture()] * 1025, "1024"),
        ("text", "frames_base64"),
    ],
    ids=lambda value: None if isinstance(value, list) else value.replace(" ", "-"),
)
def test_frames_that_are_not_pictures(client, frames, said):
    answer = ask(client, frames_base64=frames)
    check_problem(answer, "invalid")
    assert said.lower() in answer.json()["detail"].lower()


def test_a_picture_that_would_unfold_to_gigabytes(client):
    bomb = base64.b64encode(_png_header(60_000, 60_000)).decode()
    check_problem(ask(client, frames_base64=[bomb]), "too_large", "60000x60000")


def test_a_picture_whose_chunk_claims_gigabytes(client):
    """The decoder would make room for them."""
    content = base64.b64decode(picture(kind=".png"))
    start = content.index(b"IDAT") - 4
    huge = content[:start] + (0x7FFFFFF7).to_bytes(4, "big") + content[start + 4 :]
    answer = ask(client, frames_base64=[base64.b64encode(huge).decode()])
    check_problem(answer, "invalid", "damaged or truncated")


def test_pictures_past_the_pixel_limit(client):
    answer = ask(client, frames_base64=[picture(5000, 2000)])
    check_problem(answer, "too_large", "5000x2000", "4096x2304")


def _png_header(width: int, height: int) -> bytes:
    encoded = base64.b64decode(picture(kind=".png"))
    header = encoded[12:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + encoded[24:29]
    return encoded[:12] + header + zlib.crc32(header).to_bytes(4, "big") + encoded[33:]


# Fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nframes": 0}, "nframes"),
        ({"nframes": 129}, "128"),
        ({"nframes": 1.5}, "nframes"),
        ({"nframes": "many"}, "nframes"),
        ({"nframes": None}, "nframes"),
        ({"max_pixels": 783}, "784"),
        ({"max_pixels": 1_605_633}, "1605632"),
        ({"task_text": ""}, "task_text"),
        ({"task_text": "x" * 4097}, "4096"),
        ({"task_text": 7}, "task_text"),
        ({"fps": 0}, "fps"),
        ({"fps": -20}, "fps"),
        ({"fps": 1e9}, "1000"),
        ({"backend": "gpt-99"}, "loaded: fake"),
        ({"backend_kwargs": {"colour": 1}}, "colour"),
        ({"backend_kwargs": {"score_mode": "sideways"}}, "score_mode"),
        ({"backend_kwargs": []}, "backend_kwargs"),
        ({"video": "x"}, "unknown field 'video'; accepted: task_text, video_path"),
        ({"video_path": "good.mp4"}, "exactly one of"),
        ({"frames_base64": None}, "exactly one of"),
        ({"frames_base64": None, "video_path": "good.mp4", "fps": 20}, "fps goes with"),
        ({"frames_base64": None, "video_path": ""}, "video_path"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_a_field_out_of_its_range(client, fields, said):
    check_problem(ask(client, **fields), "invalid", said)


# Bodies


def post_raw(client: httpx.Client, content: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return client.post("/score", content=content, headers=headers)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"task_text": "\\ud800", "video_path": "good.mp4"}',
        b'{"task_text": "x", "frames_base64": ["AA=="], "fps": NaN}',
        b'{"task_text": "x", "frames_base64": ["AA=="], "backend_kwargs": {"t": NaN}}',
        b'{"task_text": "x", "frames_base64": ["AA=="], "backend_kwargs": {"t": Infinity}}',
        b'{"task_text": "x", "video_path": "good.mp4", "nframes": 1e999}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"backend_kwargs": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_body_that_is_not_the_json_asked_for(client, content):
    check_problem(post_raw(client, content), "invalid")


def test_a_body_of_100_mb_is_refused_on_its_headers(client):
    answer = post_raw(client, b"x" * 100_000_000)
    check_problem(answer, "too_large", "64 MiB")


def test_a_body_that_does_not_say_how_long_it_is_is_cut_at_the_limit(serve):
    client = serve(max_body_mb=1)

    def endless():
        for _ in range(64):
            yield b"x" * 2**16

    headers = {"content-type": "application/json"}
    answer = client.post("/score", content=endless(), headers=headers)
    check_problem(answer, "too_large", "1 MiB")


def test_headers_without_end_are_refused():
    settings = VideoSettings(port=0)
    server = Server(create_app(settings, {"fake": FakeJudge()}), settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(10)
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            with contextlib.suppress(OSError):
                for _ in range(200):
                    connection.sendall(b"X-Filler: " + b"x" * 65536 + b"\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(65536)[:12] in {b"HTTP/1.1 400", b""}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert client.get("/healthz").status_code == 200
    finally:
        server.should_exit = True
        thread.join(10)


def test_a_body_that_is_never_finished_ends_with_the_deadline(serve):
    client = serve(deadline_s=0.3)
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.settimeout(5)
        connection.sendall(
            b"POST /score HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 504")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type(client, content_type):
    headers = {"content-type": content_type}
    answer = client.post("/score", content=b"{}", headers=headers)
    check_problem(answer, "invalid", "Content-Type: application/json")


def test_a_compressed_body(client):
    answer = post_raw(client, b"{}", **{"content-encoding": "gzip"})
    check_problem(answer, "invalid", "Content-Encoding")


def test_unknown_paths_and_methods(client):
    answer = client.get("/scores")
    assert (answer.status_code, answer.json()["kind"]) == (404, "not_found")
    answer = client.get("/score")
    assert answer.status_code == 422
    assert "takes POST, not GET" in answer.json()["detail"]
