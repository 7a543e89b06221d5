"""The time by which runs age. It is no wall clock: those jump, and replicas' may differ."""

import time

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter

from .metrics import MAX_CLOCK_DIFFERENCE_S
from .store import WALL_CLOCK, Moment, Scope, Transaction
from .values import CLOCK, WHOLE, dump, load


class _Record(BaseModel):
    """What is stored of the clock."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: FiniteFloat
    seen: Moment  #: the time of the store then
    wall: FiniteFloat  #: the wall clock of the process that wrote it


RECORD = TypeAdapter(_Record)


class RunClock:
    """Seconds that all processes with a store count together, and that only grow.

    They are those of the store's clock. In a file, that is the machine's clock since it was
    started: a restart stops them until the next change of the file. In a server it is a wall clock,
    whose jumps count as one look at most.

    Args:
        look_s: The most seconds between two looks at a clock that may jump.
        stale_s: Seconds after which a look is stored.
    """

    def __init__(self, look_s: float, stale_s: float) -> None:
        self._look_s = look_s
        self._stale_s = stale_s

    def read(self, tx: Transaction, scope: Scope) -> tuple[float, float]:
        """Return the seconds now, and by how many seconds the wall clock is ahead of the store's.

        Raises:
            Unavailable: The stored clock is damaged.
        """
        now, wall, text = tx.now, time.time(), tx.get(CLOCK, WHOLE)
        if text is None:
            record = _Record(seconds=now.seconds, seen=now, wall=wall)
        else:
            record = load(scope, text, RECORD)
        passed = now.since(record.seen, self._look_s)
        seconds, ahead_s = record.seconds + passed, wall - record.wall - passed
        if now.clock == WALL_CLOCK:
            ahead_s = wall - now.seconds
        elif now.clock != record.seen.clock:  # after a restart nobody knows how much has passed
            ahead_s = min(ahead_s, 0.0)
        is_current = now.clock == record.seen.clock and now.seconds - record.seen.seconds >= 0
        has_jumped = now.clock != WALL_CLOCK and abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S
        if text is None or not is_current or passed > self._stale_s or has_jumped:
            written = _Record(seconds=seconds, seen=now, wall=wall)
            tx.put(CLOCK, WHOLE, dump(written, RECORD))
        return seconds, ahead_s
