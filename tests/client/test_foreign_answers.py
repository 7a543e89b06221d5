"""Answers to another request, and answers of another server in place of the service."""

import asyncio

import pytest

import rewardfleet
from rewardfleet import RewardFleet

from ..conftest import table
from .conftest import Received, Reply, healthy, score_number

NO_ID = {"X-Request-Id": ""}


@pytest.mark.slow
@pytest.mark.parametrize("first", [{}, NO_ID], ids=str)
@pytest.mark.parametrize("second", [{}, NO_ID, {"X-Request-Id": "another"}], ids=str)
async def test_an_unrequested_answer_is_not_taken_for_that_of_the_next_call(
    replica, first: dict[str, str], second: dict[str, str]
):
    async def faulty(request: Received) -> Reply:
        reply = await healthy(request)
        if int(reply.body["score"] * 1e6) % 10:
            return Reply(reply.status, reply.body, first)
        then = Reply(body={"score": 1.0, "status": "ok"}, headers=second)
        return Reply(reply.status, reply.body, first, then)

    urls = [(await replica(faulty)).url, (await replica()).url]
    async with RewardFleet(video=urls, timeout_s=60) as fleet:
        answers = await asyncio.gather(*(score_number(fleet, number) for number in range(150)))
    assert answers == list(range(150))


@pytest.mark.slow
@pytest.mark.parametrize(("status", "body", "headers"), table("answers_of_others"))
async def test_the_answer_of_another_server_sends_the_call_to_another_replica(
    replica, status: int, body: str, headers: dict[str, str]
):
    foreign = Reply(status, body.encode(), NO_ID | headers)
    other, *services = await replica(foreign), await replica(), await replica()
    urls = [each.url for each in (other, *services)]
    async with RewardFleet(video=urls, timeout_s=60) as fleet:
        answers = await asyncio.gather(*(score_number(fleet, number) for number in range(60)))
    assert answers == list(range(60))
    assert other.received
    async with RewardFleet(video=[other.url, other.url + "/b"], timeout_s=3) as fleet:
        with pytest.raises(rewardfleet.RewardFleetError, match=body or f"HTTP {status}"):
            await score_number(fleet, 1)
