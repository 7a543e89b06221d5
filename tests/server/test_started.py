"""Work that runs until it has to wait, and what happens to it then."""

import asyncio
import contextlib
import gc
import time
import weakref

import pytest

from rewardfleet_server.system.started import DeadlinePassed, Started, finish_by


async def test_work_that_waits_for_nothing_is_done_even_after_its_deadline():
    async def work() -> int:
        return 3

    assert await finish_by(time.monotonic() - 1, work()) == 3


@pytest.mark.parametrize("own_timeout", [None, 5], ids=["no timeout of its own", "a longer one"])
async def test_work_that_waits_is_cancelled_at_its_deadline(own_timeout: int | None):
    ended = []

    async def work() -> None:
        try:
            async with asyncio.timeout(own_timeout):
                await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(DeadlinePassed):
        await finish_by(time.monotonic() + 0.01, work())
    assert ended


async def test_a_timeout_of_the_work_itself_is_not_the_deadline():
    async def work() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as raised:
        await finish_by(None, work())
    assert not isinstance(raised.value, DeadlinePassed)


async def test_started_work_goes_on_with_results_and_exceptions_of_what_it_waits_for():
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    async def work() -> tuple[object, object]:
        result = await first
        with pytest.raises(ValueError, match="b") as raised:
            await second
        return result, raised.value

    started = Started(work())
    assert not started.is_done
    loop.call_soon(first.set_result, "a")
    loop.call_soon(second.set_exception, error := ValueError("b"))
    assert await started == ("a", error)


async def test_started_work_may_handle_a_cancellation():
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "cleaned up"
        raise AssertionError

    async def awaited() -> str:
        return await Started(work())

    task = asyncio.create_task(awaited())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"


def test_a_failure_leaves_no_cycle_that_keeps_what_the_work_has():
    """It may be the file of an upload."""

    class Upload:
        pass

    async def fail_later() -> weakref.ref[Upload]:
        upload = Upload()
        reference = weakref.ref(upload)

        async def work(_: Upload) -> None:
            await failing()

        with contextlib.suppress(ValueError):
            await finish_by(None, work(upload))
        return reference

    def failing() -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_exception, ValueError("not a video"))
        return future

    gc.disable()
    try:
        assert asyncio.run(fail_later())() is None
    finally:
        gc.enable()
