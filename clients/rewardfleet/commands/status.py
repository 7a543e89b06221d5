"""`rewardfleet status`: the replicas of a fleet, their health and load."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import click
import httpx
from pydantic import JsonValue

from rewardfleet.http import index
from rewardfleet.http.index import Index, IndexedReplica, printable
from rewardfleet.wire.headers import GATEWAY
from rewardfleet.wire.in_flight import InFlight, merged
from rewardfleet.wire.urls import is_loopback, redact

from .options import AS_JSON, URLS, table
from .settings import api_key

#: The metrics with the load of a service, and their names in the output.
_LOAD = {
    b"rewardfleet_admitted_requests": "requests",
    b"rewardfleet_in_flight_items": "in_flight_items",
    b"rewardfleet_queue_depth": "queued_items",
}
_LOAD_LINE = re.compile(rb"^(%b){[^}]*} (\d+)" % b"|".join(_LOAD), re.MULTILINE)
#: The details that the table shows, and their names in it. JSON has all.
_SHOWN_DETAILS = {"isolation": "isolation", "loaded_backends": "judges"}


@dataclass(frozen=True)
class ReplicaStatus:
    """What is known of one replica."""

    service: str  #: e.g. `video`; `gateway` for the gateway of a fleet; `?` if unknown
    url: str  #: its base URL, without credentials
    health: str  #: `ready`, `not ready`, `unreachable`, or `starting` behind a gateway
    reason: str = ""  #: why it is not ready
    version: str = ""  #: of rewardfleet; empty if unknown
    #: What `/readyz` and `/health` report, e.g. `{"isolation": "full"}`.
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    #: `requests` (admitted), `in_flight_items` and `queued_items`; empty if unknown.
    load: Mapping[str, int] = field(default_factory=dict)
    needs_key: bool = False  #: whether its load is unknown because `/metrics` needs an API key
    restarts: int | None = None  #: how often it was started again; None if unknown
    last_failure: str = ""  #: why it was started again the last time


async def fleet_status(urls: Sequence[str], key: str = "") -> list[ReplicaStatus]:
    """Return the status of each replica, in the order of the base URLs of fleets and services."""
    async with index.http_client(key) as http:
        found = await asyncio.gather(*(_inspect(http, url) for url in urls))
    return [status for statuses in found for status in statuses]


async def _inspect(http: httpx.AsyncClient, url: str) -> list[ReplicaStatus]:
    found = await index.find_services(http, url)
    if found.page is None and not found.services:
        return [ReplicaStatus("?", redact(url), "unreachable", found.reason)]
    statuses = await asyncio.gather(*(_ask(http, *each) for each in found.services.items()))
    if found.page is None or found.page.service != GATEWAY:
        return statuses
    rows = [ReplicaStatus(GATEWAY, redact(url), "ready", version=found.page.version)]
    for service, entry in zip(statuses, found.page.services.values(), strict=True):
        replicas = (_replica(http, url, service, each) for each in entry.replicas)
        rows += await asyncio.gather(*replicas) if entry.replicas else [service]
    return rows


async def _ask(http: httpx.AsyncClient, expected: str, url: str) -> ReplicaStatus:
    """Ask one service. Its version is empty if another server, or none, answered."""
    pages = ("/", "/readyz", "/health", "/metrics")
    reply, ready, about, metrics = await asyncio.gather(
        *(index.get(http, url + page) for page in pages)
    )
    found = reply.parse(Index)
    if found is None or found.service != expected:
        reason = f"this is the {found.service} service" if found else reply.reason
        is_there = found is not None or reply.status >= 500  # a proxy answers for the service
        return ReplicaStatus(
            expected, redact(url), "not ready" if is_there else "unreachable", reason
        )
    return ReplicaStatus(
        expected,
        redact(url),
        *(("ready", "") if ready.status == 200 else ("not ready", ready.reason)),
        version=found.version or "?",
        details={**ready.details(), **about.details()},
        load={_LOAD[name]: int(count) for name, count in _LOAD_LINE.findall(metrics.content)},
        needs_key=metrics.status == 401,
    )


async def _replica(
    http: httpx.AsyncClient, gateway_url: str, service: ReplicaStatus, entry: IndexedReplica
) -> ReplicaStatus:
    """Return the status of a replica: what it answers, and what its gateway reports of it.

    It is asked if it and the gateway are on this machine. Of others, `service` is what any replica
    of the service has answered through the gateway, which decides whether they get requests.
    """
    failure = entry.last_failure or ""
    own = ReplicaStatus(service.service, redact(entry.url), "ready")
    if entry.is_ready:
        load, version = {"requests": entry.outstanding}, service.version
        own = replace(own, version=version, details=service.details, load=load)
    if is_loopback(gateway_url) and is_loopback(entry.url):
        answered = await _ask(http, service.service, entry.url)
        own = answered if answered.version else own
    if not entry.is_ready and own.health == "ready":
        own = replace(own, health="not ready" if failure else "starting", reason=failure)
    return replace(own, restarts=entry.restarts, last_failure=failure)


async def fleet_in_flight(urls: Sequence[str], key: str = "") -> InFlight:
    """Return the samples in flight at fleets and services, the oldest first."""
    async with index.http_client(key) as http:
        asked: list[str] = []
        for url in urls:  # a gateway answers for all of its services, an ingress for none
            found = await index.find_services(http, url)
            asked += [url] if found.page else [*found.services.values()] or [url]
        return merged(await asyncio.gather(*(_samples_at(http, each) for each in asked)), {})


async def _samples_at(http: httpx.AsyncClient, url: str) -> InFlight:
    reply = await index.get(http, f"{url}/inflight")
    found = reply.parse(InFlight)
    if found is None:
        return InFlight(total=0, samples=[], failures={redact(url): reply.reason})
    for each in found.samples:
        if not each.replica.startswith("http"):  # else a gateway has named it
            each.replica = f"{redact(url)} ({each.replica})"
    return found


def _row(status: ReplicaStatus) -> list[str]:
    load = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in status.load.items() if n)
    details = [
        f"{shown} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, shown in _SHOWN_DETAILS.items()
        if (value := status.details.get(name)) is not None
    ]
    if status.restarts:
        reason = f" ({status.last_failure})" if status.last_failure else ""
        details.append(f"restarts {status.restarts}{reason}")
    health = f"{status.health}: {status.reason}" if status.reason else status.health
    load = load or ("idle" if status.load else "")
    return [status.service, status.url, health, status.version, load, "; ".join(details)]


def _in_flight_table(found: InFlight) -> str:
    columns = ("age", "left", "stage", "items", "service", "backend", "replica", "request id")
    rows = []
    for each in found.samples:
        left = "" if each.remaining_s is None else f"{each.remaining_s:.1f} s"
        times = (f"{each.age_s:.1f} s", left, f"{each.stage} for {each.stage_s:.1f} s")
        names = (each.service, each.backend, redact(each.replica), each.request_id)
        rows.append([*times, str(each.items), *names])
    listed = sum(each.items for each in found.samples)
    rest = f"; the oldest {listed} are shown" if listed < found.total else ""
    failures = [printable(f"{redact(url)}: {reason}") for url, reason in found.failures.items()]
    lines = [table(columns, rows)] if rows else []
    return "\n".join([*lines, f"{found.total} samples in flight{rest}", *failures])


@click.command(
    name="status",
    help="Show the replicas of a fleet: health, version, load. Each URL is that of a fleet or of a "
    "single service.  [env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@URLS
@click.option("--inflight", "in_flight", is_flag=True, help="Show the samples in flight instead.")
@AS_JSON
def command(urls: list[str], in_flight: bool, as_json: bool) -> int:
    """Print the status of fleets and services; return 1 if one is not ready."""
    if in_flight:
        found = asyncio.run(fleet_in_flight(urls, api_key()))
        click.echo(found.model_dump_json(indent=2) if as_json else _in_flight_table(found))
        return 1 if found.failures else 0
    statuses = asyncio.run(fleet_status(urls, api_key()))
    if as_json:
        click.echo(json.dumps([asdict(each) for each in statuses], indent=2))
    else:
        columns = ("service", "address", "health", "version", "load", "details")
        click.echo(table(columns, map(_row, statuses)))
        if any(each.needs_key for each in statuses):
            another = "another API key: that of REWARDFLEET_API_KEY is wrong"
            key = another if api_key() else "an API key: set REWARDFLEET_API_KEY"
            click.echo(f"Load that is not shown needs {key}.")
    return 0 if all(each.health == "ready" for each in statuses) else 1
