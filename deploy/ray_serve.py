"""The services as applications of Ray Serve: see docs/ray-serve.md.

    python deploy/ray_serve.py --config fleet.toml

A replica is the same ASGI application that `rewardfleet serve` runs, so admission, deadlines, API
keys, caches and metrics are those of the service. Serve's proxies take the place of the gateway.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Before Ray is imported, which reads it: nothing is reported to anyone.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import click
import ray
from ray import serve
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from rewardfleet.wire.errors import NotFound, Unavailable
from rewardfleet.wire.headers import PREFIX_HEADER, REQUEST_ID_HEADER
from rewardfleet_server.flags import read_settings
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.problems import problem_response
from rewardfleet_server.observe.logs import configure_logging
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.serve import prepare_process
from rewardfleet_server.settings import (
    ServerSettings,
    is_loopback,
    is_url,
    unknown_variable_warnings,
)
from rewardfleet_server.up.flags import network_flags
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.settings import FleetConfig, read_config
from rewardfleet_server.video.judges.settings import built_in

#: Requests that wait in a proxy, e.g. while the only replica is replaced. A burst waits there until
#: each request has a replica.
_MAX_QUEUED = 4096
#: Requests beyond the capacity of a replica that reach it all the same: it answers them with 429,
#: and pages such as `/readyz` are answered at capacity as well.
_SPARE_REQUESTS = 64
#: Seconds after the deadline of a request in which its replica must have answered.
_OVERDUE_SECONDS = 10.0
#: Seconds after `shutdown_timeout_s` in which a replica must have ended.
_END_SECONDS = 10.0
#: Rewards are needed in bursts: Ray's own values are 30 s for both.
_AUTOSCALING = {"upscale_delay_s": 5.0, "look_back_period_s": 10.0}
#: Ray's own policy counts requests, not items. A name, as Ray imports it in several processes.
_POLICY = "rewardfleet_server.up.ray_scaling:scale_on_items"


def application(service: str, args: Mapping[str, Any]) -> serve.Application:
    """Return a service as an application of Ray Serve.

    Args:
        service: Its name, e.g. `code`.
        args: The settings of the service. In addition: `replicas`; `ray`, with options of
            `serve.deployment`; and `host`, the address on which Serve's proxies listen. An
            application cannot know it, so it is taken to be reachable from other machines, which
            requires API keys.

    Raises:
        ValueError: A setting is not valid.
    """
    return _service(service, args)[1]


def _service(service: str, args: Mapping[str, Any]) -> tuple[ServerSettings, serve.Application]:
    """Return the settings of a service, and its application; see `application`."""
    given = dict(args)
    options, replicas = dict(given.pop("ray", {})), given.pop("replicas", None)
    given.setdefault("host", "0.0.0.0")
    scaling = dict(options.pop("autoscaling_config", None) or {})
    if scaling and replicas is not None:
        raise ValueError(f"[{service}] give either `replicas` or `ray.autoscaling_config`")
    most = scaling.get("max_replicas", 1) if scaling else 1 if replicas is None else replicas
    if not (isinstance(most, int) and most >= 1):
        raise ValueError(f"replicas of {service}: give 1 or more (got {most!r})")
    settings = _settings(service, given, most)
    if scaling:
        policy = {"policy_function": _POLICY}
        target = {"target_ongoing_requests": _items_at_work(settings)}
        options["autoscaling_config"] = {**_AUTOSCALING, **target, "policy": policy, **scaling}
    else:
        options["num_replicas"] = most
    capacity = settings.max_in_flight + settings.max_queue_depth
    defaults = {
        # The service refuses what is beyond its capacity, with a 429 that says when to retry.
        "max_ongoing_requests": capacity + _SPARE_REQUESTS,
        "max_queued_requests": _MAX_QUEUED,
        "backpressure_config": {"status_code": 429, "retry_after_s": 1},
        "graceful_shutdown_timeout_s": settings.shutdown_timeout_s + _END_SECONDS,
    }
    actor = {**_resources(service, settings), **options.pop("ray_actor_options", {})}

    def build() -> _Mounted:
        configure_logging(settings.log_level)
        prepare_process()
        return _Mounted(SERVICES[service].app(settings))

    options = {"name": service, **defaults, **options, "ray_actor_options": actor}
    try:
        return settings, serve.deployment(serve.ingress(build)(_Replica), **options).bind()
    except (TypeError, ValueError) as error:  # of Ray, for an option
        raise ValueError(f"[{service}.ray] {error}") from None


def _settings(service: str, given: dict[str, Any], most: int) -> ServerSettings:
    """Return the settings of each replica.

    They are read here, so that the environment of the one who deploys counts, not that of nodes.
    """
    settings_type = SERVICES[service].settings.load()
    for name in given.keys() - settings_type.model_fields.keys() | given.keys() & {"port"}:
        raise ValueError(f"[{service}] {name}: no such setting of a service in Ray Serve")
    has_runs = "run_state" in settings_type.model_fields
    if has_runs:
        given["replicas"] = most
    try:
        settings = read_settings(settings_type, given)
    except ValueError as error:
        raise ValueError(f"[{service}] {error}") from None
    store = getattr(settings, "run_state", None)
    if store is not None and not is_url(store):
        raise ValueError(
            f"[{service}] --run-state {store}: Ray may start a replica on another machine, which "
            "does not have the file; give redis://HOST:6379/0"
        )
    if "workers" in settings_type.model_fields.keys() - settings.model_fields_set:
        # The default is all cores of this machine; a replica has those that Ray reserves.
        settings = settings.model_copy(update={"workers": 1})
    return settings


def _resources(service: str, settings: Any) -> dict[str, float]:
    """Return what Ray reserves for a replica."""
    if service != "video":
        return {"num_cpus": getattr(settings, "workers", 1)}
    gpus = [settings.judge_settings(name).gpus for name in settings.backends if built_in(name)]
    return {"num_cpus": 1, "num_gpus": max(gpus, default=0)}


def _items_at_work(settings: Any) -> int:
    """Return how many items keep a replica busy."""
    workers: int | None = getattr(settings, "workers", None)
    return workers * 4 if workers else settings.max_in_flight


class _Replica:
    """What Ray asks a replica besides requests. `serve.ingress` adds `app`."""

    app: "_Mounted"

    def check_health(self) -> None:
        """Raise if the service can never score again; Ray then replaces the replica."""
        if (failure := self.app.service.failure()) is not None:
            raise RuntimeError(failure)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `up/ray_scaling.py` counts."""
        return {"items": self.app.service.items}


class _Mounted:
    """A service below the route prefix of its application, e.g. `/code`.

    Attributes:
        service: The application of the service.
    """

    def __init__(self, service: RewardApp) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":  # Ray adds the same request id
                name = REQUEST_ID_HEADER.encode()
                message["headers"] = [each for each in message["headers"] if each[0] != name]
            await send(message)

        if scope["type"] == "http":
            prefix, header = scope["root_path"], PREFIX_HEADER.encode()
            headers = [each for each in scope["headers"] if each[0] != header]
            scope = {
                **scope,
                "path": scope["path"].removeprefix(prefix) or "/",
                "root_path": "",
                "headers": [*headers, (header, prefix.encode())],
            }
        await self.service(scope, receive, send_without_id)


class _Index:
    """`GET /`, by which clients recognize a fleet, and `/readyz` of all services.

    Args:
        services: Their names.
    """

    def __init__(self, services: list[str]) -> None:
        self._services = services
        # It names the services and no more; those check the host.
        hosts = AllowedHosts(["*"], listens_on="", has_keys=False)
        self._gateway = Gateway({name: [] for name in services}, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path == "/readyz":
            await (await self._readiness())(scope, receive, send)
        elif path == "/inflight":  # the gateway here has no replicas to query
            error = NotFound("ask a service, e.g. /code/inflight: one of its replicas answers")
            await problem_response(error)(scope, receive, send)
        else:
            await self._gateway(scope, receive, send)

    async def _readiness(self) -> Any:
        applications = (await asyncio.to_thread(serve.status)).applications
        missing = [
            name
            for name in self._services
            if name not in applications or applications[name].status != "RUNNING"
        ]
        if missing:
            reason = f"not ready: {', '.join(missing)}"
            return problem_response(Unavailable(reason, retry_after=1))
        return JSONResponse({"status": "ready"})


def index(args: Mapping[str, Any]) -> serve.Application:
    """Return the application at `/`.

    Args:
        args: `services`: the names of the services.
    """
    services = list(args.get("services", SERVICES))
    options = {"name": "index", "ray_actor_options": {"num_cpus": 0}}
    return serve.deployment(serve.ingress(lambda: _Index(services))(_Pages), **options).bind()


class _Pages:
    """`serve.ingress` adds the application."""


def __getattr__(name: str) -> Any:
    """Return the application that a configuration file names, e.g. `ray_serve:code`."""
    if name not in SERVICES:
        raise AttributeError(f"there are {', '.join(SERVICES)} and index (got {name})")
    return partial(application, name)


@click.command(help="Run the services on Ray Serve, below one address.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file like that of `rewardfleet up`; a table [NAME.ray] has options of Ray Serve.",
)
@click.option("--only", metavar="NAMES", help="Services to run, e.g. video,code.  [default: all]")
@click.option(
    "--address",
    envvar="RAY_ADDRESS",
    help="Ray cluster, on which they stay.  [default: a local Ray that ends with this command]",
)
@network_flags("Serve's proxies")
def main(config: Path | None, only: str | None, address: str | None, **given: Any) -> None:
    """Start the applications; on a local Ray, run them until Ctrl-C or SIGTERM."""
    overrides = {name: value for name, value in given.items() if value is not None}
    if only is not None:
        overrides["only"] = [name.strip() for name in only.split(",")]
    try:
        _run(read_config(config, overrides), address)
    except (ValueError, OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None


def _run(config: FleetConfig, address: str | None) -> None:
    if "data_dir" in config.model_fields_set:
        raise ValueError("data_dir: replicas may run on several machines; give --cache URL instead")
    for warning in unknown_variable_warnings(each.settings.load() for each in SERVICES.values()):
        click.echo(f"warning: {warning}", err=True)
    planned = _plan(config, config.host)
    if address is None:
        ray.init("local", include_dashboard=False)
    else:
        ray.init(address)
        if serve.status().proxies:  # which ignore our address, and may listen on any
            planned = _plan(config, "0.0.0.0")
    longest = max(settings.deadline_s for settings, _ in planned.values())
    serve.start(
        http_options={
            "host": config.host,
            "port": config.port,
            "request_timeout_s": longest + _OVERDUE_SECONDS,
        }
    )
    targets = [
        serve.RunTarget(deployed, name=name, route_prefix=f"/{name}")
        for name, (_, deployed) in planned.items()
    ]
    index_target = serve.RunTarget(index({"services": list(planned)}), "index", "/")
    serve.run_many([*targets, index_target])
    click.echo(f"{', '.join(planned)} at http://{config.host}:{config.port}", err=True)
    if address is None:
        _wait_for_signal()
        for name in planned:  # so that admitted requests are answered; the index answers new ones
            serve.delete(name)
        serve.shutdown()
        ray.shutdown()


def _plan(config: FleetConfig, host: str) -> dict[str, tuple[ServerSettings, serve.Application]]:
    """Return the settings and the application of each service, whose proxies listen on `host`."""
    given: dict[str, Any] = {"host": host}
    if config.api_key_file is not None:
        given["api_key_file"] = config.api_key_file.absolute()
    elif config.allow_unauthenticated:
        given["allow_unauthenticated"] = True
        if not is_loopback(host):
            click.echo(
                f"NO AUTHENTICATION: anyone who can reach {host} may use the fleet", err=True
            )
    if config.allowed_host:
        given["allowed_host"] = config.allowed_host
    names = dict.fromkeys(config.only)
    for name in names:
        if "host" in config.settings[name]:
            raise ValueError(f"[{name}] host: give `host` of Serve's proxies, above all tables")
    return {name: _service(name, {**given, **config.settings[name]}) for name in names}


def _wait_for_signal() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


if __name__ == "__main__":
    main()
