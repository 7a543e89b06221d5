"""Bounds on time that also hold on a slow machine, and on one that pauses processes."""

import threading
import time

#: Seconds of one sleep of the thread that notices pauses.
_SLEEP_SECONDS = 0.02
#: CPU seconds of `_work` on the machine that limits in tests are written for.
_USUAL_SECONDS = 0.01


class Stopwatch:
    """Measures wall time from now on, less the pauses of this process.

    A thread sleeps again and again. What a sleep takes longer than asked for is a pause: of this
    process, or of the whole machine.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._paused = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._notice_pauses, daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """The seconds so far. The first reading ends the measurement."""
        elapsed = time.monotonic() - self._started
        self._end.set()
        self._thread.join()
        return elapsed - self._paused

    def _notice_pauses(self) -> None:
        while not self._end.is_set():
            slept = time.monotonic()
            time.sleep(_SLEEP_SECONDS)
            self._paused += time.monotonic() - slept - _SLEEP_SECONDS


class CpuStopwatch:
    """Measures CPU time of this thread from now on, in seconds of the usual machine.

    What this machine takes for a fixed piece of work is the baseline, measured before and after.
    """

    def __init__(self) -> None:
        self._baseline = _work()
        self._started = time.thread_time()

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        elapsed = time.thread_time() - self._started
        return elapsed * _USUAL_SECONDS / max(self._baseline, _work())


def _work() -> float:
    started = time.thread_time()
    total = 0
    for number in range(200_000):
        total += number
    return time.thread_time() - started
