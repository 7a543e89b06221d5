"""Whether a service can score now, as its work or a probe of what it needs has shown last."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rewardfleet_server.engine import Engine, as_failure
from rewardfleet_server.observe.telemetry import RequestContext

log = logging.getLogger(__name__)

#: Seconds between two probes: while all is well, and after a failure of a probe or of an item.
_PERIOD_S, _RETRY_S = 10.0, 1.0
#: Seconds for a probe: jails, judges and stores fail earlier.
_LIMIT_S = 30.0
#: Seconds for which `/readyz` waits for a probe. Those who ask wait for 2 s at least.
_WAIT_S = 0.5
#: Probes that fail in a row before the service is not ready: one may be a moment's failure.
_FAILURES = 2


class Readiness:
    """Probes what a service needs, when it is asked: in the background, one at a time.

    Args:
        probe: Uses what the service needs. Raises if that fails.
        engine: An item that it has scored since shows that all works, as a probe does. So a busy
            service is ready, however long its probe waits.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], engine: Engine[Any, Any]) -> None:
        self.failure: str | None = None  #: why the service cannot score now, or None
        self._probe, self._engine = probe, engine
        self._running: asyncio.Task[None] | None = None
        self._ended_at = -_PERIOD_S
        self._failures = _FAILURES - 1  # until it has worked for the first time, one is enough
        self._computed = self._failed = 0  # the counts of the engine at the last probe

    async def check(self, wait_s: float = _WAIT_S) -> None:
        """Begin a probe if it is time, and wait a little for it; `failure` is then as it shows."""
        has_failed = self._failures or self._engine.failed > self._failed
        due_at = self._ended_at + (_RETRY_S if has_failed else _PERIOD_S)
        if self._running is None and time.monotonic() >= due_at:
            self._running = asyncio.create_task(self._run())
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=wait_s)

    async def aclose(self) -> None:
        """End the probe that runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        reason, computed, self._failed = None, self._engine.computed, self._engine.failed
        try:
            if computed == self._computed:
                async with asyncio.timeout(_LIMIT_S):
                    await self._probe()
        except TimeoutError:
            reason = f"a probe did not end within {_LIMIT_S:g} s"
        except Exception as error:  # noqa: BLE001 - every failure gets a type
            reason = as_failure(error, RequestContext(), overdue=False).detail
        self._computed = self._engine.computed
        if self._computed > computed:  # meanwhile
            reason = None
        self._failures = self._failures + 1 if reason else 0
        if reason is None or self._failures >= _FAILURES:
            if self.failure != reason:
                log.warning("the service is %s", f"not ready: {reason}" if reason else "ready")
            self.failure = reason
        self._ended_at, self._running = time.monotonic(), None
