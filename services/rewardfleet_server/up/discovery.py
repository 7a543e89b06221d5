"""Replicas at the addresses of names, which come and go: containers, pods."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from . import timeouts
from .replicas import Replica, watch

log = logging.getLogger(__name__)


async def follow(service: str, urls: Sequence[str], replicas: list[Replica]) -> None:
    """Keep the replicas of a service up to date, and watch them, until this is cancelled.

    Args:
        urls: Their base URLs. A name with several addresses has a replica at each.
        replicas: Changed in place. Once it has replicas, it is never empty again: the last ones
            stay, and are not ready.
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
