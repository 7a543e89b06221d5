"""Work that runs concurrently, with a progress bar where tqdm is installed."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(work: Iterable[Coroutine[Any, Any, T]], text: str, *, shown: bool) -> list[T]:
    """Run coroutines and return their results, in order. If one fails, the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    bar: Any = None
    if shown and tasks:
        with suppress(ModuleNotFoundError):
            from tqdm import tqdm  # noqa: PLC0415 - optional

            bar = tqdm(desc=text, total=len(tasks))
    if bar is not None:
        for task in tasks:
            task.add_done_callback(lambda _: bar.update())
    try:
        return await asyncio.gather(*tasks)
    finally:
        if bar is not None:
            bar.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
