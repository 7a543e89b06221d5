"""Admission: limits on requests and on items in flight."""

import asyncio
import time
from typing import Any

import pytest

from rewardfleet.wire.errors import Overloaded, Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.admission import Admission
from rewardfleet_server.testing import wait_until


def limits(**bounds: int) -> Admission:
    small = {"max_in_flight": 1, "max_queue_depth": 1, "max_total_body_bytes": 100}
    return Admission(**{**small, **bounds})


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


async def permit_order(admission: Admission, items: list[tuple[str, str]]) -> list[str]:
    """Return the order in which items get permits that come in turn, each with its request."""
    order = []

    async def use(name: str, request_id: str) -> None:
        async with admission.permit(Timing(), request_id):
            order.append(name)
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for name, request_id in items:
            group.create_task(use(name, request_id))
    return order


async def test_requests_take_turns_at_the_backend():
    batch = [(f"a{number}", "a") for number in range(5)]
    later = [("b0", "b"), ("c0", "c"), ("c1", "c")]
    order = await permit_order(limits(max_queue_depth=9), batch + later)
    assert order == ["a0", "a1", "b0", "c0", "a2", "c1", "a3", "a4"]


async def test_the_first_item_of_a_request_finds_a_permit_beside_any_batch():
    admission = limits(max_in_flight=16, max_queue_depth=5)
    release = asyncio.Event()

    async def hold() -> None:
        async with admission.permit(Timing(), "batch"):
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(hold())
        await asyncio.sleep(0)
        assert (admission.in_flight, admission.queue_depth) == (15, 5)
        with pytest.raises(Overloaded):
            async with admission.permit(Timing(), "batch"):
                pass
        async with admission.permit(Timing(), "single"):
            assert admission.in_flight == 16
        release.set()
    assert (admission.in_flight, admission.queue_depth) == (0, 0)
    assert admission.free_permits == 16


async def test_an_item_that_is_cancelled_when_it_gets_its_permit_gives_it_back():
    admission = limits(max_queue_depth=9)

    async def use() -> None:
        async with admission.permit(Timing(), "request"):
            raise AssertionError("it was cancelled before")

    async with admission.permit(Timing(), "request"):
        waiting = [asyncio.create_task(use()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert all(each.cancelled() for each in waiting)
    assert (admission.in_flight, admission.queue_depth) == (0, 0)
    async with asyncio.timeout(1), admission.permit(Timing(), "request"):
        pass


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
    async with asyncio.timeout(1), admission.permit(Timing()):  # a cancelled waiter holds none
        assert admission.queue_depth == 0


async def in_line(admission: Admission, number: int) -> list[asyncio.Task[Any]]:
    """Begin to wait in line; the tasks end with places."""
    until = asyncio.get_running_loop().time() + 60
    tasks = [asyncio.create_task(admission.wait_in_line(1, until)) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_requests_in_line_are_admitted_in_order():
    admission = limits(max_in_flight=2, max_queue_depth=2, max_waiting=10)
    tasks = await in_line(admission, 10)
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True] * 4 + [False] * 6
    for index in range(6):
        tasks[index].result().leave()
        await asyncio.sleep(0.001)
        assert [task.done() for task in tasks] == [True] * (5 + index) + [False] * (5 - index)
    for task in tasks[6:]:
        task.result().leave()
    assert (admission.admitted, admission.waiting) == (0, 0)
    assert await admission.drain(0.01)


async def test_a_line_leaves_room_for_requests_that_do_not_wait():
    admission = limits(max_in_flight=1, max_queue_depth=4, max_waiting=10)
    tasks = await in_line(admission, 10)
    assert (admission.admitted, admission.waiting) == (2, 8)
    with admission.admit(1), admission.admit(1), admission.admit(1):
        assert admission.admitted == 5
    assert (admission.admitted, admission.waiting) == (2, 8)
    for task in tasks:
        (await task).leave()


async def test_a_request_leaves_the_line_when_it_is_cancelled_late_or_admitted_too_late():
    admission = limits(max_waiting=300)
    holders = [admission.admit(1), admission.admit(1)]
    tasks = await in_line(admission, 200)
    late = asyncio.get_running_loop().time() + 0.02
    tasks += [asyncio.create_task(admission.wait_in_line(1, late)) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks[:100]:
        task.cancel()
    holders[0].leave()
    for task in tasks[100:200]:  # of which some have got a place in the same moment
        task.cancel()
    results = await asyncio.gather(*tasks[200:], return_exceptions=True)
    assert all(isinstance(each, Overloaded) or each.leave() is None for each in results)
    await asyncio.gather(*tasks, return_exceptions=True)
    holders[1].leave()
    assert (admission.admitted, admission.waiting) == (0, 0)
    with admission.admit(1):
        assert admission.admitted == 1


async def test_a_full_line_refuses_and_a_service_that_ends_serves_those_in_line():
    admission = limits(max_waiting=1)
    holders = [admission.admit(1), admission.admit(1)]
    (task,) = await in_line(admission, 1)
    with pytest.raises(Overloaded, match="1 requests wait in line"):
        await admission.wait_in_line(1, 1e9)
    ends = asyncio.create_task(admission.drain(60))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await admission.wait_in_line(1, 1e9)
    for holder in holders:
        holder.leave()
    (await task).leave()
    assert await ends


async def test_a_place_has_room_for_the_whole_body():
    admission = limits(max_in_flight=2, max_waiting=2, max_total_body_bytes=100)
    first = await admission.wait_in_line(90, 1e9)
    with pytest.raises(Overloaded), admission.admit(20):
        pass
    with first as resize:
        resize(90)
        with pytest.raises(Overloaded):
            admission.admit(0).__enter__()(20)
