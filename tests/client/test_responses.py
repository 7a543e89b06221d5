"""Responses that are too large, or compressed, are typed failures and are not read."""

import socket

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


async def fails(url: str, message: str) -> None:
    async with RewardFleet(video=url, timeout_s=10) as fleet:
        with pytest.raises(rewardfleet.BackendFailed, match=message):
            await fleet.video.score("task 1", "clip.mp4")


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_an_endless_response_is_cut_off(status):
    sent = []

    def handle(connection: socket.socket) -> None:
        total = 0
        try:
            connection.sendall(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            while total < 2**30:
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                total += 0x10000
        except OSError:
            sent.append(total)

    with handling(handle, waits=True) as url:
        await fails(url, "more than 1048576 bytes")
    assert sent[0] < 64 * 2**20, "what the sockets buffer, and no more"


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "br", "zstd", "identity, gzip"])
async def test_a_response_that_is_too_long_or_compressed_is_refused_unread(encoding):
    """A megabyte may expand to a gigabyte; the client does not accept compression."""
    size = 9 if encoding else 2**40  # of which nothing comes
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {size}\r\n\r\n"
    with answering(head.encode()) as url:
        await fails(url, "Content-Encoding" if encoding else "more than")


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
    assert newer.received[0].headers["accept-encoding"] == "identity"


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
