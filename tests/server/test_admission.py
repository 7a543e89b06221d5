"""Admission: limits on requests and on items in flight."""

import asyncio
import time

import pytest

from rewardfleet.wire.errors import Overloaded, Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.admission import Admission
from rewardfleet_server.testing import wait_until


def limits(**bounds: int) -> Admission:
    return Admission(
        **{"max_in_flight": 1, "max_queue_depth": 1, "max_total_body_bytes": 100, **bounds}
    )


def test_at_capacity_a_request_is_refused_at_once_with_retry_after():
    admission = limits()
    with admission.admit(1), admission.admit(1):
        with pytest.raises(Overloaded) as refused, admission.admit(1):
            pass
        assert refused.value.retry_after >= 1
        assert admission.admitted == 2
    with admission.admit(1):
        assert admission.admitted == 1


def test_the_oldest_request_without_an_answer_has_an_age():
    admission = limits()
    assert admission.oldest_seconds == 0
    started = time.monotonic()
    with admission.admit(1):
        wait_until(lambda: admission.oldest_seconds > 0.02)
        with admission.admit(1):
            assert admission.oldest_seconds > 0.02
    with admission.admit(1):
        assert admission.oldest_seconds <= time.monotonic() - started - 0.02
    assert admission.oldest_seconds == 0


def test_total_body_bytes_are_limited_but_one_request_is_always_admitted():
    admission = limits(max_queue_depth=9)
    with admission.admit(500) as resize:
        resize(500)
        with pytest.raises(Overloaded, match="500 bytes"), admission.admit(1):
            pass


def test_only_the_bytes_that_have_arrived_count():
    admission = limits(max_queue_depth=9)
    with admission.admit(100) as first, admission.admit(100) as second:
        first(60)
        second(40)
        with pytest.raises(Overloaded, match="100 bytes"):
            second(41)
        first(59)
        second(41)
    with admission.admit(100) as third:
        third(100)


async def test_permits_are_granted_in_order():
    admission = limits(max_queue_depth=3)
    order = []

    async def work(name: str) -> None:
        async with admission.permit(Timing()):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(name) for name in "abcd"))
    assert order == list("abcd")
    assert admission.queue_depth == 0


async def test_beyond_the_queue_depth_items_are_refused():
    admission = limits()
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
    ):  # a cancelled waiter holds no permit
        assert admission.queue_depth == 0


async def test_draining_refuses_new_requests_and_waits_for_admitted_ones():
    admission = limits()
    with admission.admit(1):
        assert not await admission.drain(0.01)
        with pytest.raises(Unavailable), admission.admit(1):
            pass
    assert await admission.drain(0.01)
