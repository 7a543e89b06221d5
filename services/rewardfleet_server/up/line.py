"""Requests that wait in line at the gateway. What nobody has read of their bodies stays unread."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewardfleet.wire.headers import GATEWAY
from rewardfleet.wire.in_flight import InFlight, InFlightSample
from rewardfleet_server.admission import fitting_line

from .replicas import Replica, usable

if TYPE_CHECKING:  # it imports this module
    from .proxy import ProxiedRequest

#: The most requests in progress, without those that may wait in line.
MAX_REQUESTS = 4096
#: The most requests that a replica has from the line: the others stay here, where they survive it.
MAX_OUTSTANDING = 256
#: Open files besides the connections of requests.
_OTHER_FILES = 256


class Line:
    """The line of one service."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.has_opened = False  #: whether the service has had a replica that was ready
        self._replicas = replicas
        #: The requests in line, and when they began to wait.
        self.turns: OrderedDict[asyncio.Future[None], tuple[ProxiedRequest, float]] = OrderedDict()

    @property
    def is_over(self) -> bool:
        """Whether its replicas were taken away, as they end: nothing waits any more."""
        return self.has_opened and not self._replicas

    def in_flight(self, key: bytes | None) -> InFlight:
        """Return the requests that wait; with a key, those that were sent with it, and how many."""
        now = asyncio.get_running_loop().time()
        samples = [
            InFlightSample(
                service=each.service, replica=GATEWAY, request_id=each.request_id, stage="line",
                path=each.path[:200], backend="", items=1, age_s=round(now - each.started, 3),
                stage_s=round(now - since, 3),
                remaining_s=None if each.left_s == math.inf else round(each.left_s, 3),
            )
            for each, since in self.turns.values()
            if key in {None, each.key}
        ]  # fmt: skip
        return InFlight(total=len(self.turns), samples=samples)

    @staticmethod
    def accepts(replica: Replica) -> bool:
        """Return whether a replica can be sent a request that waits."""
        is_open = replica.is_ready and replica.cooling_until <= time.monotonic()
        return is_open and replica.outstanding < MAX_OUTSTANDING

    async def wait(self, request: "ProxiedRequest", *, at_front: bool) -> bool:
        """Wait for a turn to be sent to a replica; return False if there was none in time.

        A request that has had a turn before waits at the front.
        """
        loop = asyncio.get_running_loop()
        turn = request.body.turn = loop.create_future()
        self.turns[turn] = request, loop.time()
        self.turns.move_to_end(turn, last=not at_front)
        try:
            async with asyncio.timeout_at(request.line_until):
                await turn
        except TimeoutError:
            return turn.done() and not turn.cancelled()
        finally:
            self.turns.pop(turn, None)
        return True

    def advance(self) -> None:
        """Give turns to as many requests as the replicas have room for."""
        self.has_opened = self.has_opened or any(each.is_ready for each in self._replicas)
        if not self.turns:
            return
        open_replicas = [each for each in usable(self._replicas) if self.accepts(each)]
        room = sum(MAX_OUTSTANDING - each.outstanding for each in open_replicas)
        if self.is_over:
            room = len(self.turns)
        while self.turns and room > 0:
            turn, _ = self.turns.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                room -= 1


def most_waiting(open_files: int, replicas: int) -> int:
    """Return how many requests may wait in line, if so many files may be open."""
    # A request at a replica has a second connection.
    free = open_files - 2 * MAX_REQUESTS - _OTHER_FILES
    free = max(free - MAX_OUTSTANDING * replicas, free // 2)
    return fitting_line(free, open_files)
