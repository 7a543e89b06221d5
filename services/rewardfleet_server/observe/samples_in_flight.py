"""What a service answers to "what is training waiting for?": its samples in flight."""

import socket
import time
from collections.abc import Iterable

from rewardfleet.wire.in_flight import MAX_LISTED, InFlight, InFlightSample

from .telemetry import RequestContext
from .tracing import ItemSpan

#: A sample may share another one's computation, which may wait for a third one's check of tests.
_MAX_LEADERS = 2


def list_samples(service: str, requests: Iterable[RequestContext]) -> InFlight:
    """Return the samples of requests that are not answered yet.

    Args:
        requests: In the order in which they arrived.
    """
    now = time.monotonic()
    total = 0
    samples: list[InFlightSample] = []
    for request in requests:
        for sample in request.samples or (ItemSpan(stage=request.stage, since=request.started),):
            total += sample.items
            if len(samples) == MAX_LISTED:
                continue
            working = sample
            for _ in range(_MAX_LEADERS):
                working = working.leader or working
            described = InFlightSample(
                service=service,
                replica=socket.gethostname(),
                request_id=request.request_id,
                path=request.path,
                stage=working.stage,
                backend=sample.backend,
                items=sample.items,
                age_s=round(now - request.started, 3),
                stage_s=round(now - working.since, 3),
                remaining_s=None if request.deadline is None else round(request.deadline - now, 3),
            )
            samples.append(described)
    return InFlight(total=total, samples=samples)
