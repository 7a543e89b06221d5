"""`rewardfleet up`: all services on this machine, below one address."""

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from rewardfleet.wire.urls import is_loopback
from rewardfleet_command import INTERRUPTED
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.serve import raise_descriptor_limit
from rewardfleet_server.system.diagnosis import Diagnosis, check_redis_servers
from rewardfleet_server.system.listener import bind, url_of

from . import timeouts
from .gateway import Gateway
from .line import most_waiting
from .processes import FleetFailed, ReplicaProcess
from .replicas import Replica
from .settings import FleetConfig, PlannedReplica, plan

log = logging.getLogger(__name__)
_print = partial(click.echo, err=True)

#: The most characters of the last line of a replica's log in reports.
_MAX_SHOWN = 200


def run_up(config: FleetConfig) -> int:
    """Start the fleet, and run it until Ctrl-C or SIGTERM; return the exit status.

    Raises ValueError if a setting is not valid, the address of the gateway cannot be bound, or
    another fleet uses the data folder, and OSError if that cannot be made.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    for name in ("httpx", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    listener = bind(config.host, config.port)  # first, so that no replica is given its port
    _print("Checking this machine …")
    replicas = plan(config)
    if not _works(replicas):
        return 1
    if config.api_key_file is None and not is_loopback(config.host):
        log.warning("NO AUTHENTICATION: anyone who can reach %s may use the fleet", config.host)
    folder = config.data_dir.expanduser()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        return run_on_fast_loop(_run_fleet(config, listener, replicas))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other fleets out of a data folder, whose logs and state they would mix with these."""
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released if this process is killed
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"--data-dir {folder}: the fleet of process {file.read(20)} uses it; give another "
                "folder, or end that fleet"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _works(replicas: Sequence[PlannedReplica]) -> bool:
    """Report what would keep the services from starting; return whether nothing does."""
    found: list[Diagnosis] = []
    for replica in replicas:
        try:
            bind(replica.settings.host, replica.settings.port).close()
        except ValueError as error:
            reason = f"{replica.name}: {error}"
            found.append(Diagnosis("failed", reason, "end what listens there"))
        if replica.number == 0:
            found += SERVICES[replica.service].checks(replica.settings)
    found += check_redis_servers((each.settings for each in replicas), unreachable="note")
    for status, what, fix in found:
        if status == "failed" or (status == "note" and fix):
            _print(f"{status:8}{what}" + (f"\n        fix: {fix}" if fix else ""))
    works = all(each.status != "failed" for each in found)
    if not works:
        _print("Nothing was started. `rewardfleet doctor` reports more.")
    return works


async def _run_fleet(
    config: FleetConfig, listener: socket.socket, planned: Sequence[PlannedReplica]
) -> int:
    """Run until a signal arrives or a replica cannot be started; return the exit status."""
    logs = config.data_dir.expanduser() / "logs"
    fleet: dict[str, list[Replica]] = {}
    processes = []
    for each in planned:
        replica = Replica(each.service, f"http://127.0.0.1:{each.settings.port}")
        peers = fleet.setdefault(each.service, [])
        peers.append(replica)
        processes.append(ReplicaProcess(each, replica, logs / f"{each.name}.log", peers))
    hosts = AllowedHosts(
        config.allowed_host, listens_on=config.host, has_keys=config.api_key_file is not None
    )
    max_waiting = most_waiting(raise_descriptor_limit(), len(planned))
    gateway = Gateway(fleet, hosts, max_waiting=max_waiting)
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(status: int) -> None:
        if not stopped.done():
            stopped.set_result(status)

    for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)):
        loop.add_signal_handler(number, stop, status)
    server = GracefulServer(gateway, handles_signals=False)
    serving = asyncio.create_task(server.serve([listener]))
    running = [asyncio.create_task(each.run()) for each in processes]
    reporting = asyncio.create_task(_report_start(processes, url_of(listener), logs))
    try:
        ends: list[asyncio.Future[Any]] = [stopped, *running]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()  # a replica runs until it is cancelled: this raises
        return stopped.result()
    except FleetFailed as error:
        _print(str(error))
        return 1
    finally:
        reporting.cancel()
        for peers in fleet.values():
            peers.clear()  # no request waits for them any more
        _print("Stopping …")
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait
            loop.add_signal_handler(number, lambda: [each.cancel() for each in running])
        for task in running:
            task.cancel()
        await asyncio.gather(reporting, *running, return_exceptions=True)
        server.should_exit = True
        await serving


async def _report_start(processes: Sequence[ReplicaProcess], url: str, logs: Path) -> None:
    """Print which replicas start, when each is ready, and where they are once all are."""
    started = time.monotonic()
    names = ", ".join(each.planned.name for each in processes)
    _print(f"Starting {names} below {url} …")
    await asyncio.gather(*(_report_until_ready(each, started) for each in processes))
    by_service = groupby(processes, lambda each: each.planned.service)
    for name, replicas in by_service:
        addresses = ", ".join(each.replica.url.removeprefix("http://") for each in replicas)
        _print(f"{name:8} {url}/{name:8} {addresses}")
    seconds = time.monotonic() - started
    _print(f"Ready after {seconds:.1f} s: {url}. Logs are in {logs}. Ctrl-C stops all.")


async def _report_until_ready(process: ReplicaProcess, started: float) -> None:
    """Print when a replica is ready, and until then from time to time what it does."""
    while not process.replica.has_been_ready.is_set():
        try:
            async with asyncio.timeout(timeouts.REPORT_SECONDS):
                await process.replica.has_been_ready.wait()
            state = "is ready"
        except TimeoutError:
            state = f"is starting; its log ends with: {process.last_line[:_MAX_SHOWN]}"
        _print(f"{time.monotonic() - started:5.1f} s  {process.planned.name} {state}")
