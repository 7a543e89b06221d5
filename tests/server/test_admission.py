"""Admission: two bounds, tried and never waited for without end."""

import asyncio

import pytest

from rewardfleet.wire.errors import Overloaded, Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.admission import Admission


def house(**bounds: int) -> Admission:
    return Admission(
        **{"max_in_flight": 1, "max_queue_depth": 1, "max_total_body_bytes": 100, **bounds}
    )


def test_a_full_house_refuses_at_once_and_says_when_to_come_again():
    admission = house()
    with admission.admit(1), admission.admit(1):
        with pytest.raises(Overloaded) as refused, admission.admit(1):
            pass
        assert refused.value.retry_after >= 1
        assert admission.admitted == 2
    with admission.admit(1):
        assert admission.admitted == 1


def test_bodies_together_are_bounded_but_one_alone_always_fits():
    admission = house(max_queue_depth=9)
    with admission.admit(500), pytest.raises(Overloaded, match="500 bytes"), admission.admit(1):
        pass


async def test_places_at_the_backend_go_round_in_order():
    admission = house(max_queue_depth=3)
    order = []

    async def work(name: str) -> None:
        async with admission.permit(Timing()):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(name) for name in "abcd"))
    assert order == list("abcd")
    assert admission.queue_depth == 0


async def test_more_than_max_waiting_are_refused():
    admission = house()
    async with admission.permit(Timing()):
        waiter = asyncio.create_task(admission.permit(Timing()).__aenter__())
        await asyncio.sleep(0)
        assert admission.queue_depth == 1
        with pytest.raises(Overloaded, match="queued for the backend"):
            async with admission.permit(Timing()):
                pass
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with (
        asyncio.timeout(1),
        admission.permit(Timing()),
    ):  # the waiter that left holds no place
        assert admission.queue_depth == 0


async def test_draining_refuses_the_new_and_waits_for_those_inside():
    admission = house()
    with admission.admit(1):
        assert not await admission.drain(0.01)
        with pytest.raises(Unavailable), admission.admit(1):
            pass
    assert await admission.drain(0.01)
