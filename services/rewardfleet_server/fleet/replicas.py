"""The replicas of the services of a fleet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    """

    service: str
    url: str
    is_ready: bool = False
    outstanding: int = 0
    cooling_until: float = 0.0
    restarts: int = 0
    last_failure: str = ""


#: The replicas of each service, by its name.
Fleet = Mapping[str, Sequence[Replica]]
