"""Responses that are too large, or compressed, are typed failures and are not read."""

import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import rewardfleet
from rewardfleet import RewardFleet
from rewardfleet.http import transport
from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import RewardFleetError

from .conftest import Reply, answering, handling


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_RETRIES", 0)
    monkeypatch.setattr(transport, "_MAX_RESPONSE_BYTES", 2**20)
    monkeypatch.setattr(transport, "_MAX_ITEM_BYTES", 0)


@contextmanager
def endless(head: bytes, chunk: bytes) -> Iterator[tuple[str, list[int]]]:
    """Answer with `chunk` until the client disconnects; yield the URL, and the bytes sent."""
    sent = []

    def handle(connection: socket.socket) -> None:
        total = 0
        try:
            connection.sendall(head)
            while total < 2**30:
                connection.sendall(chunk)
                total += len(chunk)
        except OSError:
            sent.append(total)

    with handling(handle, waits=True) as url:
        yield url, sent


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_an_endless_response_is_cut_off(status):
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with endless(head, chunk) as (url, sent):
        async with RewardFleet(video=url, timeout_s=10) as fleet:
            with pytest.raises(rewardfleet.BackendFailed, match="more than 1048576 bytes"):
                await fleet.video.score("task 1", "clip.mp4")
    assert sent[0] < 64 * 2**20, "what the sockets buffer, and no more"


async def test_a_response_that_announces_too_much_is_not_read():
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {2**40}\r\n\r\n".encode()
    with answering(head) as url:
        async with RewardFleet(video=url, timeout_s=10) as fleet:
            with pytest.raises(rewardfleet.BackendFailed, match="more than"):
                await fleet.video.score("task 1", "clip.mp4")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
async def test_a_compressed_response_is_refused_unread(encoding):
    """A megabyte may expand to a gigabyte; the client does not accept compression."""
    body = gzip.compress(b" " * 10_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    with answering(head.encode() + body) as url:
        async with RewardFleet(video=url, timeout_s=10) as fleet:
            with pytest.raises(rewardfleet.BackendFailed, match="Content-Encoding"):
                await fleet.video.score("task 1", "clip.mp4")


async def test_causes_and_errors_of_newer_services_are_read(replica):
    problem = {"title": "Vague", "status": 422, "detail": "Which bowl?", "kind": "vague"}
    results = [
        {"score": 0.5, "status": "ok", "cause": "too_slow"},
        {"score": 0.25, "status": "ok", "cause": "judge_says_no"},
        {"score": None, "status": "error", "error": {**problem, "retryable": False}},
    ]
    newer = await replica(Reply(body={"results": results}))
    async with RewardFleet(video=newer.url) as fleet:
        request = rewardfleet.video_request("task", "clip.mp4")
        new, known, failed = await fleet.video.score_batch([request] * 3)
    assert (new.cause, new.score, known.cause) == ("too_slow", 0.5, "judge_says_no")
    assert isinstance(known.cause, VideoCause)
    assert isinstance(RewardFleetError.from_problem(failed.error), rewardfleet.InvalidRequest)
    assert (failed.cause, failed.error.detail) == ("invalid", "Which bowl?")


async def test_outcomes_and_reasons_of_newer_services_are_read(replica):
    """The reward is valid, whatever a newer service says about it."""
    tests = [{"verdict": "network_limit", "verdict_by": "people"}, {"verdict": "accepted"}]
    own = {"verdicts": tests, "drop_reason": "too_long", "tools": {"browse": {"open": 2}}}
    url = (await replica(Reply(body={"score": 0.5, "status": "ok", **own}))).url
    async with RewardFleet(code=url, tools=url) as fleet:
        tests = rewardfleet.StdioTests(
            kind="stdio", cases=[rewardfleet.StdioCase(stdin="", stdout="")] * 2
        )
        program = await fleet.code.score("pass", tests)
        answer = await fleet.tools.score("an answer", "<think>")
    new, known = program.verdicts
    assert (new.verdict, new.verdict_by, program.score) == ("network_limit", "people", 0.5)
    assert known.verdict is rewardfleet.Outcome.ACCEPTED
    assert answer.tools == {"browse": {"open": 2}}
    episode = rewardfleet.EpisodeScore(score=0.5, status="ok", drop_reason="too_long")
    assert episode.drop_reason == "too_long"


async def test_the_client_accepts_no_compression(replica):
    only = await replica()
    async with RewardFleet(video=only.url) as fleet:
        await fleet.video.score("task 1", "clip.mp4")
    assert only.received[0].headers["accept-encoding"] == "identity"
