"""Warnings about entries, of which a store may have many."""

import logging
import time

#: Seconds between two warnings with one cause.
_SECONDS = 10.0


class LogThrottle:
    """Logs a warning at most every ten seconds, and how often it was due since."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next_at = 0.0
        self._skipped = 0

    def __call__(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now < self._next_at:
            self._skipped += 1
            return
        more = f" ({self._skipped} more before)" if self._skipped else ""
        self._log.warning(message + more, *arguments)
        self._next_at, self._skipped = now + _SECONDS, 0
