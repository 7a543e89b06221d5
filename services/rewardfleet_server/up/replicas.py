"""The replicas of the services of a fleet."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .upstream import Connection, UpstreamFailed

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Replica:
    """One process of a service.

    Attributes:
        service: E.g. `video`.
        url: Its base URL.
        is_ready: Whether it may be sent requests.
        outstanding: Requests that it was sent and has not answered.
        cooling_until: Time of `time.monotonic` before which it gets none, as it was at capacity.
        restarts: How often it was started again.
        last_failure: Why it ended the last time, or is not ready; empty if it never failed.
        has_been_ready: Set once it has been ready.
        connections: Those with its outstanding requests.
    """

    service: str
    url: str
    is_ready: bool = False
    outstanding: int = 0
    cooling_until: float = 0.0
    restarts: int = 0
    last_failure: str = ""
    has_been_ready: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[Connection] = field(default_factory=set)

    def abandon(self, reason: str) -> None:
        """Fail its outstanding requests, so that they are sent to other replicas."""
        if self.connections:
            text = "%d requests at %s of %s are sent to others: %s"
            log.warning(text, len(self.connections), self.url, self.service, reason)
        for each in self.connections:
            each.abort(UpstreamFailed(reason))


#: The replicas of each service, by its name.
Fleet = Mapping[str, Sequence[Replica]]
