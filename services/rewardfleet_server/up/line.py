"""Requests that wait in line at the gateway. What nobody has read of their bodies stays unread."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewardfleet.wire.headers import GATEWAY
from rewardfleet.wire.in_flight import InFlightSample
from rewardfleet_server.admission import fitting_line

from .replicas import Replica, usable

if TYPE_CHECKING:  # it imports this module
    from .proxy import ProxiedRequest

#: The most requests in progress, without those that may wait in line.
MAX_REQUESTS = 4096
#: The most requests in line, of all services together.
MAX_WAITING = 10_000
#: The most requests that a replica has from the line: the others stay here, where they survive it.
MAX_OUTSTANDING = 256
#: Open files besides the connections of requests.
_OTHER_FILES = 256


class Line:
    """The line of one service."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.has_opened = False  #: whether the service has had a replica that was ready
        self._replicas = replicas
        self._is_closed = False
        #: The requests by their turns, each with the time at which it began to wait.
        self._turns: OrderedDict[asyncio.Future[None], tuple[ProxiedRequest, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._turns)

    def samples(self, key: bytes | None) -> list[InFlightSample]:
        """Return the requests that wait.

        Args:
            key: The `Authorization` of those that may be listed; None for all.
        """
        now = asyncio.get_running_loop().time()
        return [
            InFlightSample(
                service=each.service,
                replica=GATEWAY,
                request_id=each.request_id,
                path=each.path[:200],
                stage="line",
                backend="",
                items=1,  # of its body, nothing is known
                age_s=round(now - each.started, 3),
                stage_s=round(now - since, 3),
                remaining_s=round(each.left_s, 3) if each.left_s < math.inf else None,
            )
            for each, since in self._turns.values()
            if key is None or each.key == key
        ]

    @staticmethod
    def accepts(replica: Replica) -> bool:
        """Return whether a replica can be sent a request that waits."""
        is_open = replica.is_ready and replica.cooling_until <= time.monotonic()
        return is_open and replica.outstanding < MAX_OUTSTANDING

    async def wait(self, request: "ProxiedRequest", until: float, *, at_front: bool) -> bool:
        """Wait for a turn to be sent to a replica, or until the caller disconnects.

        Return False if there was none in time.

        Args:
            until: Time of the event loop's clock.
            at_front: Whether the request has had a turn before.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._turns[turn] = request, loop.time()
        self._turns.move_to_end(turn, last=not at_front)
        request.body.turn = turn
        try:
            async with asyncio.timeout_at(loop.time() if self._is_closed else until):
                await turn
        except TimeoutError:
            return turn.done() and not turn.cancelled()
        finally:
            request.body.turn = None
            self._turns.pop(turn, None)
        return not self._is_closed

    def close(self) -> None:
        """Let nothing wait any more: there will be no replica."""
        self._is_closed = True
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)

    def advance(self) -> None:
        """Give turns to as many requests as the replicas have room for."""
        self.has_opened = self.has_opened or any(each.is_ready for each in self._replicas)
        if not self._turns:
            return
        open_replicas = [each for each in usable(self._replicas) if self.accepts(each)]
        room = sum(MAX_OUTSTANDING - each.outstanding for each in open_replicas)
        while self._turns and room > 0:
            turn, _ = self._turns.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                room -= 1


def most_waiting(open_files: int, replicas: int) -> int:
    """Return how many requests may wait in line, if so many files may be open."""
    # A request at a replica has a second connection.
    free = open_files - 2 * MAX_REQUESTS - _OTHER_FILES
    free = max(free - MAX_OUTSTANDING * replicas, free // 2)
    return fitting_line(free, MAX_WAITING, open_files)
