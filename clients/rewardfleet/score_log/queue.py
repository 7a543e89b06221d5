"""What was scored, for a thread: a queue with limits that delays nobody."""

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.util import Finalize
from typing import Any, ClassVar

from .record import Scored

log = logging.getLogger(__name__)

#: Items that wait for the thread, and bytes of what they hold, beyond which others are dropped.
_MAX_ITEMS, _MAX_BYTES = 20_000, 128 * 2**20
#: Seconds between two looks of the thread at the queue, and after one that found items: the fewer
#: it handles at once, the less do others wait for the interpreter, and the sooner is memory free.
_LOOK_SECONDS, _SOON_SECONDS = 0.25, 0.05
#: Seconds for the last items at the end.
_CLOSE_SECONDS = 2.0


class ScoredQueue:
    """Takes what was scored, and handles it in a thread of this process.

    Items are dropped and counted rather than that a score waits for them. It can be pickled, and
    used in forked processes, each of which has a thread of its own.
    """

    _name: ClassVar[str]  #: of its thread
    #: What another process needs to make the same one.
    _options: ClassVar[tuple[str, ...]]
    #: Why items are dropped.
    _reasons: ClassVar[tuple[str, ...]] = ("queue_full", "failed")

    def _begin(self) -> None:
        """Reset the state of this process. A forked process has no thread."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[tuple[Callable[[], Iterable[Scored]], int, int]] = deque()
        self._items = self._bytes = 0  # in the queue
        self._thread: threading.Thread | None = None
        self.dropped: Counter[str] = Counter(dict.fromkeys(self._reasons, 0))  #: by reason

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs."""
        return {name: getattr(self, name) for name in self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def add(self, scored: Callable[[], Iterable[Scored]], *, items: int = 1, size: int = 0) -> None:
        """Add what was scored. It takes microseconds and never fails.

        Args:
            scored: Returns it; called by the thread.
            items: How many items it has.
            size: The bytes that it keeps in memory.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            is_full = self._items + items > _MAX_ITEMS or self._bytes + size > _MAX_BYTES
            if is_full and self._items:  # one call alone may have more, as its caller does
                self.dropped["queue_full"] += items
                return
            self._items += items
            self._bytes += size
            self._queue.append((scored, items, size))
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._closing,), name=self._name, daemon=True
        )
        self._thread.start()
        # Not by `atexit`, which forked workers of `multiprocessing` leave out.
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    def close(self) -> None:
        """Handle what is left, for at most two seconds. Adding an item opens it again."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self._closing.set()
        thread.join(_CLOSE_SECONDS)
        self._at_exit.cancel()
        with self._lock:
            if not thread.is_alive() and thread is self._thread:
                self._thread = None
                if self._queue:  # added when it had ended
                    self._start()

    def _run(self, closed: threading.Event) -> None:
        pause = _LOOK_SECONDS
        while True:
            closing = closed.wait(pause)
            pause = _SOON_SECONDS if self._queue else _LOOK_SECONDS
            try:
                self._work(closing=closing)
            except Exception:  # the thread must go on
                log.exception("the thread %s", self._name)
            if closing and not self._queue:
                return

    def _work(self, *, closing: bool) -> None:
        """Handle what `_taken` yields; called all the time, and at last when it is closed."""
        raise NotImplementedError

    def _taken(self) -> Iterator[tuple[Callable[[], Iterable[Scored]], int]]:
        """Yield what is in the queue: what returns it, and how many items that has."""
        while self._queue:
            scored, items, held = self._queue.popleft()
            try:
                yield scored, items
            finally:
                del scored  # what it holds is no longer in memory
                with self._lock:
                    self._items -= items
                    self._bytes -= held
