"""Stage timings. A trace span can be attached to a stage here, for all services at once."""

import time
from typing import Self

from rewardfleet.wire.score import Timing


class Stage:
    """A stage of scoring an item, from entering the block to leaving it, or to `stop`."""

    def __init__(self, timing: Timing, name: str) -> None:
        self._timing = timing
        self._name = name
        self._started: float | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the stage early; from any thread. Leaving the block then adds nothing."""
        started, self._started = self._started, None
        if started is not None:
            elapsed_ms = (time.monotonic() - started) * 1000
            total = getattr(self._timing, self._name) + elapsed_ms
            setattr(self._timing, self._name, round(total, 3))


def stage(timing: Timing, name: str) -> Stage:
    """Time a `with` block: its milliseconds are added to the field `name` of `timing`."""
    return Stage(timing, name)
