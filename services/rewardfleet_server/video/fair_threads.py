"""Threads that decode clips and share the cores fairly: small clips overtake large ones.

A clip is decoded in slices: between two frames, its thread may have to give its core to another
clip. Cost is measured, as CPU time, because it cannot be predicted from a file's size.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rewardfleet_server.system.threads import lower_thread_priority

T = TypeVar("T")

#: CPU seconds that a clip may take at a time. A clip that takes less is never interrupted.
_SLICE_SECONDS = 0.1
#: Every so many decisions, the clip that waits longest is next, whatever it has cost: a large clip
#: gets at least this share of the cores.
_LONGEST_WAITING_EVERY = 4


class FairThreads(ThreadPoolExecutor):
    """A pool of threads of which only a few run at a time, in turns.

    After each slice, the clip that has taken the least CPU time so far is next, so that a small
    clip waits for about one frame of a large one. Every fourth time it is the one that waits
    longest, so that each of n waiting clips gets a slice within 4 * n decisions: no stream of
    small clips starves a large one.

    Args:
        slots: Threads that run at a time, 1 or more.
        threads: All threads, running or waiting for their turn. Work beyond it is queued in order.
    """

    def __init__(self, slots: int, threads: int) -> None:
        super().__init__(threads, thread_name_prefix="decode", initializer=lower_thread_priority)
        self._lock = threading.Lock()
        self._free = slots
        self._waiting: list[Turn] = []  # the one that waits longest comes first
        self._decisions = 0

    def enter(self, turn: "Turn") -> None:
        """Wait for a slot; return without one if the turn is ended meanwhile. Blocks."""
        with self._lock:
            if self._free and not turn.ended:
                self._free -= 1
                turn.has_slot = True
            elif not turn.ended:
                self._wait(turn)
        turn.granted.wait()

    def leave(self, turn: "Turn") -> None:
        """Give back the slot of a turn, if it has one."""
        with self._lock:
            if turn.has_slot:
                turn.has_slot = False
                self._free += 1
                self._grant()

    def decide(self, turn: "Turn", slice_seconds: float) -> bool:
        """Decide who is next; return when the turn has a slot again, or is ended. Blocks.

        Args:
            turn: It has a slot.
            slice_seconds: CPU seconds since it got that slot.

        Returns:
            Whether a new slice begins. Otherwise its slice is not over, or no other clip waits.
        """
        with self._lock:
            if not self._waiting or turn.ended:
                return False
            least = min(waiting.seconds for waiting in self._waiting)
            if slice_seconds < _SLICE_SECONDS and least + _SLICE_SECONDS > turn.seconds:
                return False
            self._wait(turn)
            turn.has_slot = False
            self._free += 1
            self._grant()
        turn.granted.wait()
        return True

    def wake(self, turn: "Turn") -> None:
        """End a turn: its thread does not wait any more."""
        with self._lock:
            turn.ended = True
            if turn in self._waiting:
                self._waiting.remove(turn)
            turn.granted.set()

    def _wait(self, turn: "Turn") -> None:
        turn.granted.clear()
        self._waiting.append(turn)

    def _grant(self) -> None:
        """Give free slots to those that are next."""
        while self._free and self._waiting:
            self._decisions += 1
            if self._decisions % _LONGEST_WAITING_EVERY:
                turn = min(self._waiting, key=lambda waiting: waiting.seconds)
            else:
                turn = self._waiting[0]
            self._waiting.remove(turn)
            self._free -= 1
            turn.has_slot = True
            turn.granted.set()


class Turn(threading.Event):
    """The turn of one request in `FairThreads`, and the event that ends its work.

    Decoders get it as their `stop` event and call `is_set` between frames; this is where its thread
    waits while other clips are next.

    Args:
        threads: The pool.

    Attributes:
        seconds: CPU seconds that it has taken.
        has_slot: Whether it may run.
        granted: Set while its thread need not wait.
        ended: Whether it has been set.
    """

    def __init__(self, threads: FairThreads) -> None:
        super().__init__()
        self._threads = threads
        self._thread = 0
        self._measured = self._slice_began = 0.0
        self.seconds = 0.0
        self.has_slot = False
        self.ended = False
        self.granted = threading.Event()
        self.granted.set()

    def run(self, work: Callable[[], T]) -> T:
        """Run work in this thread, which belongs to the pool, in its turns. Blocks.

        Raises:
            TimeoutError: The event was set before the work began.
        """
        self._thread = threading.get_ident()
        self._threads.enter(self)
        self._measured = self._slice_began = time.thread_time()
        try:
            if super().is_set():
                raise TimeoutError
            return work()
        finally:
            self._threads.leave(self)

    def set(self) -> None:
        """End the work at its next frame, or at once while it waits."""
        super().set()
        self._threads.wake(self)

    def is_set(self) -> bool:
        """Return whether to end; before that, wait while another clip is next."""
        if super().is_set() or threading.get_ident() != self._thread:
            return super().is_set()
        now = time.thread_time()
        self.seconds += now - self._measured
        self._measured = now
        if self._threads.decide(self, now - self._slice_began):
            self._slice_began = now
        return super().is_set()
