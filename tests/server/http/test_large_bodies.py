"""No body, however it is made, delays other requests or takes many times its size."""

import base64
import contextlib
import functools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import httpx
import numpy as np
import pytest

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet.wire.frames import JSON_TYPE
from rewardfleet_server.episode import decode as episode_decode
from rewardfleet_server.http import body_parser
from rewardfleet_server.http.body_parser import BodyParser, ComplexityLimits, check_complexity
from rewardfleet_server.system import child_process
from rewardfleet_server.system.child_process import MemoryFile
from rewardfleet_server.testing import wait_until

from ...conftest import Serve, image_base64, table
from ..processes import descendants, idle_seconds, memory_of, service_process, watched

# A busy machine takes long for the largest bodies, and they may be repeated.
pytestmark = pytest.mark.timeout(600)

MIB = 2**20
#: Seconds that a body may delay `/healthz`, besides the longest answer of the idle service.
DELAY = 0.25
#: Memory that the decoding process takes in addition to bodies, once it has started.
DECODER = 96 * MIB


@functools.cache
def media() -> bytes:
    return base64.b64encode(os.urandom(MIB * 3 // 4)) * 60


def options(value: bytes) -> bytes:
    return b'{"task_text":"x","video_path":"x","backend_kwargs":{"a":%b}}' % value


def chat() -> bytes:
    url = f"data:image/png;base64,{media()[: 15 * MIB].decode()}"
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": "Task: x"}, *[image] * 3]
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


FORM, PART = "multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data; name="


def form(content: bytes) -> bytes:
    return PART + b'"video"; filename="a.mp4"\r\n\r\n' + content + b"\r\n--b--\r\n"


#: One of each kind; the others are for `make test-full`.
FEW = {
    "quotes and colons", "many nested lists", "nested lists in a small body",
    "batch", "form of parts",
}  # fmt: skip

NESTED = b"[" * 100 + b"]" * 100

VIDEO_BODIES: dict[str, Callable[[], bytes]] = {
    "quotes and colons": lambda: b'":' * (32 * MIB - 8),
    "escaped quotes": lambda: b'"' + b'\\":' * (20 * MIB),
    "video": lambda: b'{"task_text":"x","video_base64":"%b"}' % media(),
    "frames": lambda: (
        b'{"task_text":"x","frames_base64":["%b"]}'
        % b'","'.join(media()[: MIB // 2] for _ in range(110))
    ),
    "invalid UTF-8": lambda: b'{"task_text":"x","video_base64":"%b\xff"}' % media(),
    "a lone surrogate": lambda: b'{"video_base64":"%b","a":"\\ud800"}' % media(),
    "a lone surrogate in the service": lambda: (
        b'{"task_text":"\\ud800","video_base64":"%b"}' % media()[: 14 * MIB]
    ),
    "half a million lists": lambda: options(b"[" + b"[]," * 499_000 + b"1]"),
    "nested lists": lambda: options(b"[" + b",".join([NESTED] * 9_800) + b"]"),
    "many nested lists": lambda: options(b"[" + b",".join([NESTED] * 200_000) + b"]"),
    "nested lists in a small body": lambda: options(b"[" + b",".join([NESTED] * 5_000) + b"]"),
    "long numbers": lambda: options(b"[" + (b"9" * 4000 + b",") * 9_000 + b"1]"),
}
OTHER_BODIES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "chat": ("/v1/chat/completions", chat, JSON_TYPE),
    "batch": (
        "/score/batch",
        lambda: b'{"items":[%b]}' % options(b"[" + b"[0]," * 300_000 + b"1]"),
        JSON_TYPE,
    ),
    "form": ("/score", lambda: form(media()), FORM),
    "form of lines": ("/score", lambda: form(b"\r\n--" * (14 * MIB)), FORM),
    "form of parts": ("/score", lambda: (PART + b'"a"\r\n\r\n\r\n') * MIB, FORM),
}


def post(
    url: str, path: str, body: bytes, content_type: str = JSON_TYPE, **more: str
) -> httpx.Response:
    headers = {"content-type": content_type, **more}
    return httpx.post(f"{url}{path}", content=body, headers=headers, timeout=90, trust_env=False)


#: The process of a service, its URL, and the longest answer while it is idle.
Running = tuple[int, str, float]


def undelayed(service: Running, work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of work that delays no other request, and the most memory meanwhile."""
    pid, url, idle = service
    result, watch = watched(url, pid, work, most_seconds=idle + DELAY)
    assert watch.slowest < idle + DELAY
    return result, watch.peak


@pytest.fixture(scope="module")
def video() -> Iterator[Running]:
    with service_process("video") as (process, url):
        yield process.pid, url, idle_seconds(url, process.pid)


@pytest.mark.parametrize(
    ("body", "is_slow"),
    [
        (b'{"video_base64":"' + base64.b64encode(bytes(9 * MIB)) + b'"}', False),
        (b'{"frames_base64":["' + base64.b64encode(os.urandom(9 * MIB)) + b'"]}', False),
        (b'{"revision":"' + b"x = 1\\n" * (MIB // 7) + b'"}', False),
        (b'{"revision":"' + b"\\n" * (2 * MIB) + b'"}', True),
        (b'{"revision":"' + "é".encode() * (4 * MIB) + b'"}', True),
        (b"[" + b"[]," * 100_000 + b"1]", True),
        (b"{" + b",".join(b'"%d":1' % number for number in range(50_000)) + b"}", True),
        (b"[" + (b"9" * 4000 + b",") * 500 + b"1]", True),
        # A small part that takes long, in a body that is large otherwise.
        (b'{"a":"' + bytes(40 * MIB) + b'","b":[' + b"[]," * 200_000 + b"1]}", True),
    ],
    ids=["video", "images", "program", "escapes", "text", "lists", "fields", "numbers", "part"],
)
def test_the_time_of_parsing_is_estimated_from_what_a_body_contains(body: bytes, is_slow: bool):
    assert (body_parser.parse_seconds(body) > 0.02) == is_slow


@pytest.mark.slow
def test_slow_bodies_are_decoded_at_the_same_time_and_others_in_the_service():
    with service_process("video") as (process, url), ThreadPoolExecutor(2) as threads:
        answer = post(url, "/score", b'{"task_text":"x","video_base64":"%b"}' % media()[: 2 * MIB])
        assert "not a video" in answer.json()["detail"]
        assert not descendants(process.pid)
        body = VIDEO_BODIES["half a million lists"]()
        post(url, "/score", body)  # the child of the next one has started
        (child,) = descendants(process.pid)
        os.kill(child, signal.SIGSTOP)
        first = threads.submit(post, url, "/score", body)
        inflight = functools.partial(httpx.get, f"{url}/inflight", trust_env=False)
        wait_until(lambda: inflight().json()["total"] == 1)
        assert post(url, "/score", body).status_code == 422
        assert len(descendants(process.pid)) == 2
        os.kill(child, signal.SIGCONT)
        assert first.result().status_code == 422


@pytest.mark.slow
def test_a_body_that_is_given_up_does_not_delay_the_next():
    body = VIDEO_BODIES["half a million lists"]()
    with service_process("video") as (process, url):
        post(url, "/score", body)
        (child,) = descendants(process.pid)
        os.kill(child, signal.SIGSTOP)
        assert post(url, "/score", body, **{"x-request-timeout": "1"}).status_code == 504
        assert post(url, "/score", body).status_code == 422
        assert len(descendants(process.pid)) == 2


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        each if each in FEW else pytest.param(each, marks=pytest.mark.full)
        for each in (*VIDEO_BODIES, *OTHER_BODIES)
    ],
)
def test_a_large_body_does_not_delay_others(video: Running, name: str):
    pid, url, _ = video
    default = "/score", VIDEO_BODIES.get(name, bytes), JSON_TYPE
    path, make, content_type = OTHER_BODIES.get(name, default)
    body = make()
    before = memory_of(pid)
    answer, peak = undelayed(video, lambda: post(url, path, body, content_type))
    assert answer.status_code in {200, 422}, answer.text
    if len(body) > 32 * MIB:
        assert peak - before < 4 * len(body) + DECODER


@pytest.mark.serial
@pytest.mark.slow
def test_three_videos_at_once_do_not_delay_others(video: Running):
    pid, url, _ = video
    body = VIDEO_BODIES["video"]()
    before = memory_of(pid)
    with ThreadPoolExecutor(3) as pool:
        posting = functools.partial(pool.map, lambda _: post(url, "/score", body))
        answers, peak = undelayed(video, lambda: list(posting(range(3))))
    assert {answer.status_code for answer in answers} == {422}
    assert all("not a video" in answer.json()["detail"] for answer in answers)
    assert peak - before < 3 * 4 * len(body)


def episodes(count: int, steps: int) -> bytes:
    actions = np.random.default_rng(0).normal(size=(steps, 7)).round(6).tolist()
    item = {"success": True, "steps": 9, "max_steps": 10, "actions": actions}
    return json.dumps({"items": [{"uid": str(n), **item} for n in range(count)]}).encode()


EPISODES: dict[str, Callable[[], bytes]] = {
    "batch with an invalid item": lambda: episodes(1600, 90).replace(b'"uid": "7"', b'"uid": 7'),
    "one list": lambda: (
        b'{"items":[{"uid":"1","success":true,"step_rewards":[%b0]}]}' % (b"0," * 2_000_000)
    ),
    "short numbers": lambda: (
        b'{"items":[%b]}'
        % b",".join(
            b'{"uid":"%d","success":true,"actions":[%b[1]]}' % (n, b"[0]," * 480)
            for n in range(2048)
        )
    ),
}


@pytest.mark.serial
@pytest.mark.slow
def test_a_large_batch_of_episodes_does_not_delay_others():
    with service_process("episode") as (process, url):
        service = process.pid, url, idle_seconds(url, process.pid)
        for name, make in EPISODES.items():
            body = make()
            before = memory_of(process.pid)
            answer, peak = undelayed(service, functools.partial(post, url, "/score/batch", body))
            assert answer.status_code == 200, name
            failed = sum(each["status"] == "error" for each in answer.json()["results"])
            assert failed == (name == "batch with an invalid item"), name
            assert peak - before < 14 * len(body) + DECODER, name


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("service", ["code", pytest.param("tools", marks=pytest.mark.full)])
def test_large_bodies_of_the_other_services_do_not_delay_others(service: str):
    tests = '{"kind":"functional","fn_name":"f","cases":[{"args":[[%s0]],"expected":1}]}'
    program = '{"revision":"def f(*a): return 1","tests":%s}'
    batch = f'{{"items":[{program}]}}'
    item = {"response": "a\n" * 100_000, "ground_truth": "<think>x</think>"}
    bodies = {
        "code": {
            "/score": program % (tests % ("[0]," * 300_000)),
            "/score/batch": batch % (tests % ("0," * 990_000)),
            "/run_code": json.dumps({"language": "python", "code": "0", "stdin": "\n" * 30 * MIB}),
            "/submit": '":' * 32 * (MIB - 1),
        },
        "tools": {
            "/score/batch": json.dumps({"items": [item] * 120}),
            "/score": json.dumps({**item, "response": "\n" * 30 * MIB}),
        },
    }
    with service_process(service) as (process, url):
        running = process.pid, url, idle_seconds(url, process.pid)
        for path, body in bodies[service].items():
            answer, _ = undelayed(running, functools.partial(post, url, path, body.encode()))
            assert answer.status_code == (422 if path == "/submit" else 200), answer.text[:500]


@pytest.mark.slow
def test_the_decoding_process_is_replaced_and_ends_with_its_service():
    body = b'{"task_text":"x","video_base64":"%b"}' % media()[: 40 * MIB]
    with service_process("video") as (process, url):
        for _ in range(2):
            assert "not a video" in post(url, "/score", body).json()["detail"]
            (child,) = descendants(process.pid)
            os.kill(child, signal.SIGKILL)
            wait_until(lambda child=child: not _is_running(child))
        assert "not a video" in post(url, "/score", body).json()["detail"]
        (child,) = descendants(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not _is_running(child))


def _is_running(pid: int) -> bool:
    # A thread of it may end later.
    with contextlib.suppress(FileNotFoundError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


@pytest.mark.slow
def test_the_service_loads_nothing_but_data_from_the_decoding_process():
    process = BodyParser(MIB)
    try:
        body = MemoryFile()
        body.write(b"\x7f\0\0\1")
        with pytest.raises(UnpicklingError, match="IPv4Address is not data"):
            process.decode(IPv4Address, body, ComplexityLimits(10, 10))
    finally:
        process.close()


def test_a_decoding_process_that_does_not_start_is_no_fault_of_the_body(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(child_process, "_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(child_process, "_START_SECONDS", 0.1)
    process = BodyParser(MIB)
    with pytest.raises(Unavailable, match="did not start"):
        process.decode(IPv4Address, MemoryFile(), ComplexityLimits(10, 10))
    process.close()


@pytest.mark.slow
def test_a_body_that_takes_too_long_to_decode_is_invalid(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    client = serve()
    large = {"task_text": "x", "frames_base64": [image_base64()]}
    url = str(client.base_url)
    warm = post(url, "/score", json.dumps(large).encode() + b" " * (2 * MIB))
    assert warm.status_code == 200
    monkeypatch.setattr(body_parser, "_DECODE_SECONDS", 0.05)
    answer = post(url, "/score", VIDEO_BODIES["nested lists"]())
    assert (answer.status_code, answer.json()["kind"]) == (422, "invalid")
    assert "too much time" in answer.json()["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 7, 2**20])
def test_what_strings_contain_is_not_counted_wherever_a_body_is_cut(
    monkeypatch: pytest.MonkeyPatch, size: int
):
    monkeypatch.setattr(body_parser, "_SLICE", size)
    choose = random.Random(0).choices
    for _ in range(200):
        outside = choose([b":", b",", b"[", b"{", b"]", b"1"], k=20)
        strings = [b"".join(choose([rb"\\", rb"\"", b":", b",", b"[", b"a"], k=6)) for _ in outside]
        pairs = zip(outside, strings, strict=True)
        body = b"".join(b'%b"%b"' % pair for pair in pairs)
        fields, values = outside.count(b":"), sum(map(outside.count, (b",", b"[", b"{")))
        check_complexity(body, ComplexityLimits(fields, values))
        for limits in (ComplexityLimits(fields - 1, values), ComplexityLimits(fields, values - 1)):
            with pytest.raises(InvalidRequest):
                check_complexity(body, limits)


@pytest.mark.parametrize("items", table("batches_with_lists"))
def test_both_decoders_of_a_batch_make_arrays_of_lists(items):
    body = json.dumps({"items": items}).encode()
    first, lenient = episode_decode.decode_batch(body), episode_decode._decode_leniently(body)
    assert {n: e.detail for n, e in first.invalid.items()} == {
        n: e.detail for n, e in lenient.invalid.items()
    }
    for mine, expected in zip(first.items, lenient.items, strict=True):
        for name in episode_decode.Item.__struct_fields__:
            value, other = getattr(mine, name), getattr(expected, name)
            assert type(value) is type(other)
            assert np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other


@pytest.mark.parametrize("numbers", ["1,", "1,,2", ",1", "1,2,3,4,,5", "1,2,3,4,5,"])
def test_a_list_in_a_batch_must_be_valid(numbers: str):
    body = f'{{"items":[{{"uid":"a","step_rewards":[{numbers}]}}]}}'.encode()
    with contextlib.suppress(InvalidRequest):
        assert episode_decode.decode_batch(body).invalid
