"""Requests that wait in line at the gateway, with their bodies unread."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence

from rewardfleet_server.admission import fitting_line

from .replicas import Replica

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
        self._replicas = replicas
        self._turns: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @staticmethod
    def accepts(replica: Replica) -> bool:
        """Return whether a replica can be sent a request that waits."""
        is_open = replica.is_ready and replica.cooling_until <= time.monotonic()
        return is_open and replica.outstanding < MAX_OUTSTANDING

    async def wait(self, until: float, *, at_front: bool) -> bool:
        """Wait for a turn to be sent to a replica; return False if there was none in time.

        Args:
            until: Time of the event loop's clock.
            at_front: Whether the request has had a turn before.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[turn] = None
        self._turns.move_to_end(turn, last=not at_front)
        try:
            async with asyncio.timeout_at(until):
                await turn
        except TimeoutError:
            return turn.done() and not turn.cancelled()
        finally:
            self._turns.pop(turn, None)
        return True

    def advance(self) -> None:
        """Give turns to as many requests as the replicas have room for."""
        if not self._turns:
            return
        open_replicas = [each for each in self._replicas if self.accepts(each)]
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
