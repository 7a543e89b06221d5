"""`rewardfleet status`: the replicas of a fleet, their health and load."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar
from urllib.parse import quote, urlsplit

import click
import httpx
from click.core import ParameterSource
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, JsonValue, ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rewardfleet.client import SERVICES
from rewardfleet.wire.errors import Problem
from rewardfleet.wire.headers import GATEWAY
from rewardfleet.wire.in_flight import InFlight, merged
from rewardfleet_server.settings import is_loopback, redact

from .options import API_KEY, AS_JSON, SERVICE_URLS

ModelT = TypeVar("ModelT", bound=BaseModel)

#: Seconds that each request may take.
_TIMEOUT_SECONDS = 2.0
#: The same for samples in flight: a gateway waits for its replicas.
_IN_FLIGHT_SECONDS = 5.0
#: How many characters of a text from a service are shown.
_MAX_SHOWN = 200
#: Width of the table where the output is not a terminal: its lines are not wrapped.
_PLAIN_WIDTH = 2000

Health = Literal["ready", "starting", "not ready", "unreachable"]
_COLORS: dict[Health, str] = {"ready": "green", "starting": "yellow"}

#: The metrics with the load of a service, and their names in the output.
_LOAD_METRICS = {
    "rewardfleet_admitted_requests": "requests",
    "rewardfleet_in_flight_items": "in_flight_items",
    "rewardfleet_queue_depth": "queued_items",
}
_LOAD_WORDS = {"requests": "requests", "in_flight_items": "items at work", "queued_items": "queued"}
#: The details that the table shows, and their names in it. JSON has all.
_SHOWN_DETAILS = {"isolation": "isolation", "loaded_backends": "judges"}


@dataclasses.dataclass(frozen=True)
class ReplicaStatus:
    """What is known of one replica.

    Attributes:
        service: E.g. `video`; `gateway` for the gateway of a fleet; `?` if unknown.
        url: Its base URL, without credentials.
        health: `starting` is known of replicas behind a gateway only.
        reason: Why it is not ready; empty if it is.
        version: The version of rewardfleet; empty if unknown.
        details: What `/readyz` and `/health` report, e.g. `{"isolation": "full"}`.
        load: `requests` (admitted), `in_flight_items` and `queued_items`. Those that are missing
            are unknown.
        needs_key: Whether its load is unknown because `/metrics` needs an API key.
        restarts: How often it was started again; None if unknown.
        last_failure: Why it was started again the last time; empty if it was not.
    """

    service: str
    url: str
    health: Health
    reason: str = ""
    version: str = ""
    details: Mapping[str, JsonValue] = dataclasses.field(default_factory=dict)
    load: Mapping[str, int] = dataclasses.field(default_factory=dict)
    needs_key: bool = False
    restarts: int | None = None
    last_failure: str = ""


class _Replica(BaseModel):
    """A replica in the index of a gateway."""

    url: str
    is_ready: bool = False
    outstanding: int = 0
    restarts: int = 0
    last_failure: str | None = None


class _Replicas(BaseModel):
    """A service in the index of a gateway."""

    replicas: list[_Replica] = []


class _Index(BaseModel):
    """The answer to `GET /` of a service or a gateway."""

    service: str
    version: str = ""
    services: dict[str, _Replicas] = {}


def run_status(
    urls: Sequence[str],
    services: Sequence[str],
    *,
    api_key: str | None,
    as_json: bool,
    in_flight: bool = False,
) -> int:
    """Print the status of fleets and services, or their samples in flight.

    Args:
        urls: Base URLs of fleets or of single services.
        services: Single services as `NAME=URL`.
        api_key: Sent as a bearer token.
        as_json: Print JSON, for machines.
        in_flight: Print the samples in flight instead.

    Returns:
        The exit status: 0 if all replicas are ready, or report their samples; else 1.

    Raises:
        ValueError: A URL, a name or the key is not valid.
    """
    key = (api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise ValueError("the API key is not one line of plain ASCII")
    targets = [(None, base_url(url)) for url in urls] + [named_url(each) for each in services]
    if in_flight:
        found = asyncio.run(fleet_in_flight(targets, key))
        if as_json:
            click.echo(found.model_dump_json(indent=2))
        else:
            _print_in_flight(found)
        return 1 if found.failures else 0
    statuses = asyncio.run(fleet_status(targets, key))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in statuses], indent=2))
    else:
        _print_table(statuses)
    return 0 if all(each.health == "ready" for each in statuses) else 1


async def fleet_status(
    targets: Iterable[tuple[str | None, str]], api_key: str = ""
) -> list[ReplicaStatus]:
    """Return the status of each replica, in the order of the targets; one or more per target.

    Args:
        targets: The service that is expected, or None for any service or fleet, and the base URL.
        api_key: Sent as a bearer token; empty for none.
    """
    async with _http(api_key) as http:
        inspector = _Inspector(http)
        found = await asyncio.gather(*(inspector.inspect(*target) for target in targets))
    return [status for statuses in found for status in statuses]


async def fleet_in_flight(targets: Iterable[tuple[str | None, str]], api_key: str = "") -> InFlight:
    """Return the samples in flight at all targets, the oldest first; see `fleet_status`."""
    async with _http(api_key) as http:
        inspector = _Inspector(http)
        found = await asyncio.gather(*(inspector.in_flight(*target) for target in targets))
    answers = [answer for each in found for answer in each]
    return merged(answers, {})


def _http(api_key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(headers=headers, timeout=None, trust_env=False)  # noqa: S113 - `_get` limits complete requests


def named_url(text: str) -> tuple[str, str]:
    """Return the service and the base URL of `NAME=URL`.

    Raises:
        ValueError: It is something else.
    """
    name, separator, url = text.partition("=")
    if name not in SERVICES or not separator:
        known = ", ".join(SERVICES)
        raise ValueError(f"--service {redact(text)}: give NAME=URL; NAME is one of {known}")
    return name, base_url(url)


def base_url(url: str) -> str:
    """Return a base URL without a slash at its end.

    Raises:
        ValueError: It is not an HTTP URL.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port, or a bracket without its pair
        is_valid = False
    if not is_valid or "?" in url or "#" in url:
        raise ValueError(f"give a URL such as http://127.0.0.1:18000, not {redact(url)!r}")
    return url.rstrip("/")


class _Inspector:
    """Asks services and gateways. It reports what does not answer, and raises nothing."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def inspect(self, expected: str | None, url: str) -> list[ReplicaStatus]:
        """Return the status of a service, or of all replicas of a fleet."""
        if expected is not None:
            return [await self._service(expected, url)]
        answer = await self._get(f"{url}/")
        index = _parse(_Index, answer)
        if index is not None and index.service == GATEWAY:
            return await self._gateway(url, index)
        if index is None and isinstance(answer, httpx.Response):
            return await self._ingress(url, answer)
        return [await self._service(None, url)]

    async def in_flight(self, expected: str | None, url: str) -> list[InFlight]:
        """Return the samples in flight of a service, or of all replicas of a fleet."""
        answer = await self._get(f"{url}/inflight", _IN_FLIGHT_SECONDS)
        if expected is not None or not _is_404(answer):
            return [_in_flight_of(url, answer)]
        answers = await asyncio.gather(
            *(self._get(f"{url}/{name}/inflight", _IN_FLIGHT_SECONDS) for name in SERVICES)
        )
        below = zip(SERVICES, answers, strict=True)
        present = [
            _in_flight_of(f"{url}/{name}", each) for name, each in below if not _is_404(each)
        ]
        return present or [_in_flight_of(url, answer)]

    async def _gateway(self, url: str, index: _Index) -> list[ReplicaStatus]:
        gateway = ReplicaStatus(GATEWAY, redact(url), "ready", version=_clean(index.version))
        found = await asyncio.gather(
            *(
                self._behind_gateway(name, url, service.replicas)
                for name, service in index.services.items()
            )
        )
        return [gateway, *(status for statuses in found for status in statuses)]

    async def _behind_gateway(
        self, name: str, gateway_url: str, replicas: Sequence[_Replica]
    ) -> list[ReplicaStatus]:
        """Ask the replicas that can be reached from here, and the service for all others."""
        service, *direct = await asyncio.gather(
            self._service(name, f"{gateway_url}/{quote(name, safe='')}"),
            *(self._service(name, each.url) for each in replicas if _is_local(gateway_url, each)),
        )
        if not replicas:
            return [service]
        answered = {each.url: each for each in direct if each.version}
        return [
            _with_report(answered.get(redact(replica.url)), service, replica)
            for replica in replicas
        ]

    async def _ingress(self, url: str, answer: httpx.Response) -> list[ReplicaStatus]:
        """Return the status of the known services below a URL whose index is of something else."""
        answers = await asyncio.gather(*(self._get(f"{url}/{name}/") for name in SERVICES))
        if not any(_parse(_Index, each) for each in answers):
            return [ReplicaStatus("?", redact(url), "unreachable", _reason(answer))]
        present = [name for name, each in zip(SERVICES, answers, strict=True) if not _is_404(each)]
        return await asyncio.gather(*(self._service(name, f"{url}/{name}") for name in present))

    async def _service(self, expected: str | None, url: str) -> ReplicaStatus:
        """Ask one service. Its version is empty if another server, or none, answered."""
        answer, ready, health, metrics = await asyncio.gather(
            *(self._get(url + path) for path in ("/", "/readyz", "/health", "/metrics"))
        )
        index = _parse(_Index, answer)
        status = ReplicaStatus(_clean(expected or "?"), redact(url), "unreachable")
        if isinstance(answer, str):
            return dataclasses.replace(status, reason=answer)
        if index is None:
            failing = answer.status_code >= 500  # a proxy answers for the service
            health_then: Health = "not ready" if failing else "unreachable"
            return dataclasses.replace(status, health=health_then, reason=_reason(answer))
        if expected not in {None, index.service}:
            reason = f"this is the {_clean(index.service)} service"
            return dataclasses.replace(status, health="not ready", reason=reason)
        is_ready = isinstance(ready, httpx.Response) and ready.status_code == 200
        return dataclasses.replace(
            status,
            service=_clean(index.service),
            health="ready" if is_ready else "not ready",
            reason="" if is_ready else _reason(ready),
            version=_clean(index.version) or "?",
            details={**_details(ready), **_details(health)},
            load=_load(metrics),
            needs_key=isinstance(metrics, httpx.Response) and metrics.status_code == 401,
        )

    async def _get(self, url: str, timeout_s: float | None = None) -> httpx.Response | str:
        """Return the response, or why there is none."""
        seconds = timeout_s or _TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await self._http.get(url)
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _clean(str(error)) or type(error).__name__


def _is_local(gateway_url: str, replica: _Replica) -> bool:
    """Return whether a replica is on this machine, as its gateway is.

    The loopback addresses of a remote gateway are not those of this machine.
    """
    try:
        hosts = [urlsplit(url).hostname or "" for url in (gateway_url, base_url(replica.url))]
    except ValueError:
        return False
    return all(is_loopback(host) for host in hosts)


def _with_report(
    direct: ReplicaStatus | None, service: ReplicaStatus, replica: _Replica
) -> ReplicaStatus:
    """Return the status of a replica: what it answered, and what its gateway reports of it.

    Args:
        direct: Its answer; None if it cannot be reached from here.
        service: The answer of any replica of this service.
        replica: The report of the gateway, which decides whether the replica gets requests.
    """
    failure = _clean(replica.last_failure or "")
    if direct is None:
        direct = ReplicaStatus(service.service, redact(_clean(replica.url)), "ready")
        if replica.is_ready:
            load = {"requests": replica.outstanding}
            version, details = service.version, service.details
            direct = dataclasses.replace(direct, version=version, details=details, load=load)
    if not replica.is_ready and direct.health == "ready":
        health: Health = "not ready" if failure else "starting"
        direct = dataclasses.replace(direct, health=health, reason=failure)
    return dataclasses.replace(direct, restarts=replica.restarts, last_failure=failure)


def _parse(model: type[ModelT], answer: httpx.Response | str) -> ModelT | None:
    """Return the model of an answer, or None if it is something else."""
    if isinstance(answer, str):
        return None
    try:
        return model.model_validate_json(answer.content)
    except ValidationError:
        return None


def _in_flight_of(url: str, answer: httpx.Response | str) -> InFlight:
    """Return the samples of an answer, or why there are none as a failure of the address."""
    found = _parse(InFlight, answer)
    if found is None:
        return InFlight(total=0, samples=[], failures={redact(url): _reason(answer)})
    for sample in found.samples:
        if not sample.replica.startswith("http"):  # else it is named by a gateway
            sample.replica = f"{redact(url)} ({sample.replica})"
    return found


def _is_404(answer: httpx.Response | str) -> bool:
    return isinstance(answer, httpx.Response) and answer.status_code == 404


def _reason(answer: httpx.Response | str) -> str:
    """Return why a service is not ready."""
    if isinstance(answer, str):
        return answer
    problem = _parse(Problem, answer)
    if problem is not None:
        return _clean(problem.detail)
    return f"HTTP {answer.status_code}, not an answer of rewardfleet"


def _details(answer: httpx.Response | str) -> dict[str, JsonValue]:
    """Return what `/readyz` or `/health` reports besides its status."""
    if isinstance(answer, str) or answer.status_code != 200:
        return {}
    try:
        content = answer.json()
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if name != "status"}


def _load(answer: httpx.Response | str) -> dict[str, int]:
    if isinstance(answer, str) or answer.status_code != 200:
        return {}
    try:
        samples = [
            sample
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        ]
        return {
            _LOAD_METRICS[sample.name]: int(sample.value)
            for sample in samples
            if sample.name in _LOAD_METRICS
        }
    except ValueError:  # not in the format of Prometheus
        return {}


def _clean(text: str) -> str:
    """Return a text that a service sent, on one line and without control characters."""
    return "".join(each if each.isprintable() else " " for each in text[:_MAX_SHOWN])


def _print_table(statuses: Sequence[ReplicaStatus]) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else _PLAIN_WIDTH)
    table = Table(box=SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for column in ("service", "address", "health", "version", "load", "details"):
        table.add_column(column, no_wrap=column in {"service", "address", "version"})
    for each in statuses:
        health = f"{each.health}: {each.reason}" if each.reason else each.health
        table.add_row(
            Text(each.service),
            Text(each.url),
            Text(health, _COLORS.get(each.health, "red")),
            Text(each.version),
            Text(_shown_load(each.load)),
            Text(_shown_details(each)),
        )
    console.print(table)
    if any(each.needs_key for each in statuses):
        console.print(Text("Load that is not shown needs an API key: set REWARDFLEET_API_KEY."))


def _print_in_flight(found: InFlight) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else _PLAIN_WIDTH)
    table = Table(box=SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    columns = ("age", "left", "stage", "items", "service", "backend", "replica", "request id")
    for column in columns:
        table.add_column(column, no_wrap=column != "replica")
    for each in found.samples:
        left = "" if each.remaining_s is None else f"{each.remaining_s:.1f} s"
        texts = (each.service, each.backend, redact(each.replica), each.request_id)
        table.add_row(
            f"{each.age_s:.1f} s",
            left,
            Text(_clean(f"{each.stage} for {each.stage_s:.1f} s")),
            str(each.items),
            *(Text(_clean(text)) for text in texts),
        )
    if found.samples:
        console.print(table)
    listed = sum(each.items for each in found.samples)
    rest = f"; the oldest {listed} are shown" if listed < found.total else ""
    console.print(Text(f"{found.total} samples in flight{rest}"))
    for url, reason in found.failures.items():
        console.print(Text(_clean(f"{redact(url)}: {reason}"), "red"))


def _shown_load(load: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {_LOAD_WORDS[name]}" for name, count in load.items() if count) or (
        "idle" if load else ""
    )


def _shown_details(status: ReplicaStatus) -> str:
    details = [
        f"{shown} {_shown(status.details[name])}"
        for name, shown in _SHOWN_DETAILS.items()
        if name in status.details
    ]
    if status.restarts:
        reason = f" ({status.last_failure})" if status.last_failure else ""
        details.append(f"restarts {status.restarts}{reason}")
    return "; ".join(details)


def _shown(value: JsonValue) -> str:
    return _clean(", ".join(map(str, value)) if isinstance(value, list) else str(value))


@click.command(
    name="status",
    help="Show the replicas of a fleet: health, version, load. URL is that of a fleet or of a "
    "single service.  [env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@click.argument("urls", nargs=-1, metavar="[URL]...", envvar="REWARDFLEET_URL")
@SERVICE_URLS
@click.option(
    "--inflight",
    "in_flight",
    is_flag=True,
    help="Show the samples in flight instead: stage, age, remaining time, replica.",
)
@AS_JSON
@API_KEY
def command(
    urls: tuple[str, ...],
    services: tuple[str, ...],
    in_flight: bool,
    as_json: bool,
    api_key: str | None,
) -> int:
    """Print the status of fleets and services; return 1 if one is not ready."""
    source = click.get_current_context().get_parameter_source("urls")
    if services and source is not ParameterSource.COMMANDLINE:
        urls = ()
    elif not urls:
        urls = ("http://127.0.0.1:18000",)
    return run_status(urls, services, api_key=api_key, as_json=as_json, in_flight=in_flight)
