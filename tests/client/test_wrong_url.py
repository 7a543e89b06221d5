"""A client whose URL leads to another service, or to no rewardfleet service at all."""

import asyncio
import math
import socket
import ssl
import threading
import traceback
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import trustme

import rewardfleet
from rewardfleet import InvalidRequest, RewardFleet, RewardFleetError, code_request, video_request
from rewardfleet.commands.main import main
from rewardfleet.wire.headers import SERVICE_HEADER

from ..conftest import LONG_CLIP, table
from ..gateways import fleet_of
from .conftest import Reply, answering, handling, healthy, score_number, until

TASK = "put the bowl on the plate"
TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
REQUEST = video_request(TASK, b"a video file")
SERVERS = table("foreign_servers")
NAMES_THE_SERVICE = "is the code service, not the video service; check the URL"


@pytest.mark.parametrize("coalesce_s", [0.0, 0.01])
async def test_every_call_names_the_service_that_answered(code_url: str, coalesce_s: float):
    async with RewardFleet(video=code_url, coalesce_s=coalesce_s) as fleet:
        for call in (
            fleet.video.score(TASK, b"a video file"),
            fleet.video.reward(TASK, b"a video file"),
            fleet.video.score_batch([REQUEST]),
            fleet.video.score_batch([REQUEST] * 3),
            fleet.video.rewards([REQUEST] * 3),
            fleet.video.health(),
        ):
            with pytest.raises(InvalidRequest, match=NAMES_THE_SERVICE) as failure:
                await call
            assert code_url in str(failure.value)


def test_the_command_names_the_service_that_answered(
    code_url: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["score", "video", str(LONG_CLIP), TASK, "--url", code_url]) == 2
    output = capsys.readouterr()
    assert NAMES_THE_SERVICE in output.err
    assert not output.out


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVERS, ids=lambda case: case["id"])
async def test_another_server_is_recognized(case: dict[str, Any]):
    error = getattr(rewardfleet, case["error"])
    with answering(case["response"].encode()) as url:
        async with RewardFleet(video=url, timeout_s=2) as fleet:
            with pytest.raises(error, match=case["message"]) as failure:
                await fleet.video.score(TASK, "clip.mp4")
    assert url in str(failure.value)


@pytest.fixture
async def tls_url() -> AsyncIterator[str]:
    """Return the URL, of plain HTTP, of a port that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0, ssl=context) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


#: URLs from that of a fleet, the URL that the message has, or None if the call succeeds.
MISTAKES = {
    "{fleet}": None,
    "{fleet}/": None,
    "{fleet}/code": None,
    "{alone}": None,
    "{alone}/code": None,
    "{fleet}/score": "{fleet}/code",
    "{fleet}/code/score": "{fleet}/code",
    "{fleet}/code/v1": "{fleet}/code",
    "{fleet}/cod": "{fleet}/code",
    "{alone}/score": "{alone}",
    "{alone}/score/batch": "{alone}",
    "https://{host}/code": "http://{host}/code",
    "http://no-such-host.invalid": "no-such-host.invalid",
    "{tls}": "https://",
}


@pytest.mark.parametrize("given", MISTAKES)
@pytest.mark.parametrize("calls", [1, 30])
async def test_a_mistake_is_named_with_the_right_url(
    given: str, calls: int, code_url: str, tls_url: str
):
    """At the first calls, whatever `on_failure` is, by the client and by the command."""
    with fleet_of(code=code_url) as fleet_url:
        host = fleet_url.partition("://")[2]
        names = {"fleet": fleet_url, "alone": code_url, "host": host, "tls": tls_url}
        url, right = given.format(**names), MISTAKES[given]
        async with RewardFleet(code=url, on_failure=math.nan, timeout_s=60) as fleet:
            rewards = [fleet.code.reward("print(1)", TESTS) for _ in range(calls)]
            found = await asyncio.gather(*rewards, return_exceptions=True)
            if right is None:
                assert found == [1.0] * calls
                assert math.isnan(await fleet.code.reward(None, TESTS)), "an abstention"
        if right is not None:
            assert all(isinstance(each, RewardFleetError) for each in found)
            assert all(right.format(**names) in str(each) for each in found), found[0]


async def test_what_has_worked_is_waited_for(replica):
    """Another server may answer in place of a service that restarts."""
    only = await replica()
    problem = {"title": "x", "status": 401, "detail": "x", "kind": "unauthorized"}
    others = [
        Reply(404, b"<html>Not here</html>", {"X-Request-Id": ""}),
        Reply(200, b"<html>Welcome</html>", {"X-Request-Id": ""}),
        Reply(500, b"Internal Server Error"),  # of Ray Serve, if a replica died
        Reply(401, {**problem, "retryable": False}),
        Reply(404, b"", {"X-Request-Id": "", SERVICE_HEADER: "gateway"}),
        Reply(200, b"{}", {"X-Request-Id": "", SERVICE_HEADER: "code"}),
    ]
    async with RewardFleet(video=only.url, timeout_s=60) as fleet:
        assert await score_number(fleet, 1) == 1
        for other in others:
            only.script, sent = other, len(only.received)
            call = asyncio.create_task(score_number(fleet, 2))
            await until(lambda sent=sent: len(only.received) > sent + 7)
            only.script = healthy
            assert await call == 2


@pytest.mark.parametrize("worked", [False, True])
async def test_a_refused_connection_raises_if_the_url_has_never_worked(replica, worked: bool):
    only = await replica()
    async with RewardFleet(video=only.url, timeout_s=1, on_failure=math.nan) as fleet:
        if worked:
            assert await fleet.video.reward("task 1", "clip.mp4") == 0.0
        await only.stop()
        requests = [video_request(f"task {each}", "clip.mp4") for each in range(3)]
        calls = (fleet.video.reward("task 1", "clip.mp4"), fleet.video.rewards(requests))
        for call in calls:
            if worked:
                assert np.isnan(await call).all()
            else:
                with pytest.raises(rewardfleet.Unavailable, match="cannot be reached"):
                    await call


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 429 X\r\nContent-Length: 0\r\nRetry-After: 9\r\n\r\n",
        b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n",
        b"HTTP/1.1 200 X\r\nContent-Length: 0\r\nContent-Encoding: gzip\r\n\r\n",
    ],
)
async def test_what_has_never_answered_is_no_missing_reward(answer: bytes | None):
    """Whether it is silent, another protocol, or a proxy without the service."""
    ended = threading.Event()

    def handle(connection: socket.socket) -> None:
        if answer is None:
            ended.wait(60)
        else:
            connection.sendall(answer)

    with handling(handle) as url:
        async with RewardFleet(code=url, timeout_s=2, on_failure=math.nan) as fleet:
            with pytest.raises(RewardFleetError):
                await fleet.code.reward("print(1)", TESTS)
        ended.set()


async def test_a_wrong_url_among_others_raises_for_the_whole_batch(code_url: str):
    async with RewardFleet(code=[f"{code_url}/x", code_url], on_failure=math.nan) as fleet:
        with pytest.raises(InvalidRequest, match=f"which is at {code_url}"):
            await fleet.code.rewards([code_request("print(1)", TESTS)] * 8)


@pytest.mark.parametrize("calls", [1, 3])
async def test_no_message_has_the_password_of_a_url(code_url: str, calls: int, caplog):
    host = code_url.partition("://")[2]
    caplog.set_level(0)
    user = "any:secret@"
    for given in (f"http://{user}{host}/x", f"https://{user}{host}", f"http://{user}n.invalid"):
        async with RewardFleet(code=given, timeout_s=5) as fleet:
            with pytest.raises(RewardFleetError) as failure:
                await fleet.code.rewards([code_request("print(1)", TESTS)] * calls)
        assert "secret" not in "".join(traceback.format_exception(failure.value))
    with pytest.raises(ValueError, match="give a URL") as refused:
        RewardFleet("http://any:secret@host/?a=b")
    assert "secret" not in str(refused.value) + caplog.text


async def test_a_url_that_never_worked_does_not_end_a_run_of_another(replica):
    """Such as that of a host that is gone: it is the only one left while the other restarts."""
    good = await replica()
    port = int(good.url.rpartition(":")[2])
    async with RewardFleet(video=["http://none.invalid", good.url], timeout_s=60) as fleet:
        assert [await score_number(fleet, number) for number in range(4)] == [0, 1, 2, 3]
        await good.stop()
        call = asyncio.create_task(score_number(fleet, 5))
        await until(lambda: bool(fleet._pending._watches))
        (watch,) = fleet._pending._watches.values()
        await until(lambda: all(each.attempts > 6 for each in watch.calls))
        await good.start(port)
        assert await call == 5
