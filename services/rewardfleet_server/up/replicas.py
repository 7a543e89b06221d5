"""The replicas of a fleet: which may be sent requests, and when theirs are sent to others."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from rewardfleet.wire.backoff import backoff_with_jitter

from . import timeouts

log = logging.getLogger(__name__)

#: Failed answers in a row after which a replica is avoided.
_AVOID_AFTER = 5


@dataclass(eq=False)
class Replica:
    """One process of a service."""

    service: str  #: e.g. `video`
    url: str
    is_ready: bool = False  #: whether it may be sent requests
    outstanding: int = 0  #: requests that it was sent and has not answered
    #: Time of `time.monotonic` before which it gets none, as it was at capacity.
    cooling_until: float = 0.0
    failures: int = 0  #: failed answers in a row
    avoided_until: float = 0.0  #: time of `time.monotonic` until which others are preferred
    run_state: str = ""  #: the id of its store of run state; empty if it has none
    restarts: int = 0  #: how often it was started again
    last_failure: str = ""  #: why it ended the last time, or is not ready; empty if it never failed
    #: Time of `time.monotonic` at which its process was ready; infinite if it was not yet.
    ready_since: float = math.inf
    #: Set once it has been ready.
    has_been_ready: asyncio.Event = field(default_factory=asyncio.Event)
    #: What fails each of its outstanding requests, given a reason.
    attempts: set[Callable[[str], None]] = field(default_factory=set)

    def note_answer(self, *, has_failed: bool, sent_at: float) -> None:
        """Count an answer to a request of that time, by `time.monotonic`."""
        if sent_at < self.avoided_until:
            return  # it was sent before what is known
        self.failures = self.failures + 1 if has_failed else 0
        if (nth := self.failures - _AVOID_AFTER + 1) > 0:
            first_s, most_s = timeouts.MIN_BACKOFF_SECONDS, timeouts.MAX_AVOIDED_SECONDS
            self.avoided_until = time.monotonic() + backoff_with_jitter(nth, first_s, most_s)

    def abandon(self, reason: str) -> None:
        """Fail its outstanding requests, so that they are sent to other replicas."""
        if self.attempts:
            text = "%d requests at %s of %s are sent to others: %s"
            log.warning(text, len(self.attempts), self.url, self.service, reason)
        for fail in self.attempts:
            fail(reason)


#: The replicas of each service, by its name.
Fleet = Mapping[str, Sequence[Replica]]


def usable(replicas: Sequence[Replica]) -> list[Replica]:
    """Return those that may be sent requests: ready ones, and those that fail only if all do.

    After its pause, one that fails gets one request at a time until it answers one.
    """
    ready, now = [each for each in replicas if each.is_ready], time.monotonic()
    return [
        each for each in ready
        if each.failures < _AVOID_AFTER or not (each.outstanding or now < each.avoided_until)
    ] or ready  # fmt: skip


async def watch(
    replica: Replica, peers: Sequence[Replica], on_frozen: Callable[[], None] = lambda: None
) -> None:
    """Poll whether a replica is ready, until this is cancelled.

    Args:
        replica: Its `is_ready` and `last_failure` are set.
        peers: All replicas of its service.
        on_frozen: Called when it has been ready and has not answered for 30 s, and again until it
            answers.
    """
    last_answer = time.monotonic()
    was_ready = False
    async with httpx.AsyncClient(timeout=timeouts.CHECK_TIMEOUT_SECONDS, trust_env=False) as client:
        while True:
            could_be_sent = replica.is_ready
            try:
                response = await client.get(f"{replica.url}/readyz")
                last_answer = time.monotonic()
                replica.is_ready = response.status_code == 200
                if replica.is_ready:
                    replica.run_state = _entry(response, "run_state", "")
                    replica.failures = replica.failures if could_be_sent else 0
                    replica.ready_since = min(replica.ready_since, last_answer)
                    was_ready = True
                    replica.has_been_ready.set()
                elif was_ready:
                    reason = f"not ready: HTTP {response.status_code}"
                    replica.last_failure = _entry(response, "detail", reason)
            except httpx.HTTPError as error:
                replica.is_ready = False
                if was_ready:
                    replica.last_failure = f"does not answer: {type(error).__name__}"
            if could_be_sent and not replica.is_ready:
                name, reason = replica.service, replica.last_failure
                log.warning("%s at %s gets no requests: %s", name, replica.url, reason)
            silence = time.monotonic() - last_answer
            # If no other one answers either, it is the machine that is busy.
            if silence > timeouts.MOVE_SECONDS and any(each.is_ready for each in peers):
                replica.abandon(f"it has not answered for {silence:.0f} s")
            if was_ready and silence > timeouts.FROZEN_SECONDS:
                on_frozen()
            await asyncio.sleep(
                timeouts.READY_CHECK_SECONDS if was_ready else timeouts.STARTING_CHECK_SECONDS
            )


def _entry(response: httpx.Response, name: str, default: str) -> str:
    try:
        return str(response.json()[name])[:200]
    except (ValueError, KeyError, TypeError):
        return default
