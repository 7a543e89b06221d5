"""The replicas of a fleet: where they are, which may be sent requests, and when they freeze."""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from rewardfleet.wire.waiting import backoff_with_jitter

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
    """Poll whether a replica is ready, beside its peers, until this is cancelled.

    When it has been ready and has not answered for 30 s, `on_frozen` is called, and again until it
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


async def follow(service: str, urls: Sequence[str], replicas: list[Replica]) -> None:
    """Keep the replicas of a service up to date, and watch them, until this is cancelled.

    A name in a URL with several addresses has a replica at each. The list is changed in place. Once
    it has replicas, it is never empty again: the last ones stay, and are not ready.
    """
    watches: dict[Replica, asyncio.Task[None]] = {}
    known: dict[str, set[str]] = {}
    unknown: set[str] = set()
    try:
        while True:
            for url, found in zip(urls, await asyncio.gather(*map(_addresses, urls)), strict=True):
                if not found and url not in unknown:
                    log.warning("%s: no address of %s is known", service, url)
                (unknown.discard if found else unknown.add)(url)
                # One that answers stays while its name cannot be looked up. Another service may get
                # the address of one that does not.
                ready = {each.url for each in watches if each.is_ready}
                known[url] = found or known.get(url, set()) & ready
            addresses = set().union(*known.values())
            kept = [each for each in watches if each.url in addresses]
            new = [Replica(service, url) for url in addresses - {each.url for each in kept}]
            for gone in watches.keys() - kept:
                if gone.outstanding:  # they are sent to others if it freezes
                    continue
                watches.pop(gone).cancel()
                if not (kept or new):
                    gone.is_ready = False
                    gone.last_failure = "its name has no address"
            if kept or new:
                replicas[:] = [*kept, *new]
            for each in new:
                watches[each] = asyncio.create_task(watch(each, replicas))
            await asyncio.sleep(timeouts.LOOK_UP_SECONDS)
    finally:
        for task in watches.values():
            task.cancel()


async def _addresses(url: str) -> set[str]:
    """Return a URL for each address of the host of a URL; none if it cannot be looked up."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    for family in (socket.AF_INET, socket.AF_INET6):  # not both: a replica may have one of each
        try:
            found = await loop.getaddrinfo(
                parts.hostname, parts.port or 80, family=family, type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            if error.errno in {socket.EAI_AGAIN, socket.EAI_FAIL}:
                break  # the name server fails; there may be addresses of this family
            continue
        hosts = {f"[{at[0]}]" if family == socket.AF_INET6 else at[0] for *_, at in found}
        return {f"http://{host}:{parts.port or 80}" for host in hosts}
    return set()
