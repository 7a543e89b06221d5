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

#: The most characters of the last line of a replica's log in reports.
_MAX_SHOWN = 200


def run_up(config: FleetConfig, *, show_logs: bool) -> int:
    """Start the fleet, and run it until Ctrl-C or SIGTERM; return the exit status.

    Raises:
        ValueError: A setting is not valid, the address of the gateway cannot be bound, or another
            fleet uses the data folder.
        OSError: The data folder cannot be made.
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
    max_waiting = most_waiting(raise_descriptor_limit(), len(replicas))
    folder = config.data_dir.expanduser()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        fleet = _Fleet(config, listener, replicas, show_logs=show_logs, max_waiting=max_waiting)
        return run_on_fast_loop(fleet.run())


def _print(text: str) -> None:
    click.echo(text, err=True)


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
    failures = 0
    for diagnosis in _diagnoses(replicas):
        has_failed = diagnosis.status == "failed"
        if not has_failed and not (diagnosis.status == "note" and diagnosis.fix):
            continue
        failures += has_failed
        _print(f"{diagnosis.status:8}{diagnosis.what}")
        if diagnosis.fix:
            _print(f"        fix: {diagnosis.fix}")
    if failures:
        _print("Nothing was started. `rewardfleet doctor` reports more.")
    return not failures


def _diagnoses(replicas: Sequence[PlannedReplica]) -> Iterator[Diagnosis]:
    for replica in replicas:
        try:
            bind(replica.settings.host, replica.settings.port).close()
        except ValueError as error:
            yield Diagnosis("failed", f"{replica.name}: {error}", "end what listens there")
        if replica.number == 0:
            yield from SERVICES[replica.service].checks(replica.settings)
    yield from check_redis_servers((each.settings for each in replicas), unreachable="note")


class _Fleet:
    def __init__(
        self,
        config: FleetConfig,
        listener: socket.socket,
        planned: Sequence[PlannedReplica],
        *,
        show_logs: bool,
        max_waiting: int,
    ) -> None:
        self._listener = listener
        folder = config.data_dir.expanduser() / "logs"
        self._processes: list[ReplicaProcess] = []
        self._logs = folder
        by_service: dict[str, list[Replica]] = {}
        for each in planned:
            replica = Replica(each.service, f"http://127.0.0.1:{each.settings.port}")
            peers = by_service.setdefault(each.service, [])
            peers.append(replica)
            process = ReplicaProcess(
                each, replica, folder / f"{each.name}.log", peers, is_shown=show_logs
            )
            self._processes.append(process)
        self._url = url_of(self._listener)
        hosts = AllowedHosts(
            config.allowed_host, listens_on=config.host, has_keys=config.api_key_file is not None
        )
        self._gateway = Gateway(by_service, hosts, max_waiting=max_waiting)
        self._stopped = asyncio.Event()
        self._status = 0  # of this process, set by the signal that stops it

    async def run(self) -> int:
        """Run until a signal arrives or a replica cannot be started; return the exit status."""
        loop = asyncio.get_running_loop()
        for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)):
            loop.add_signal_handler(number, self._stop, status)
        server = GracefulServer(self._gateway, handles_signals=False)
        serving = asyncio.create_task(server.serve([self._listener]))
        running = [asyncio.create_task(each.run()) for each in self._processes]
        try:
            return await self._until_stopped(running)
        finally:
            _print("Stopping …")
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait
                loop.add_signal_handler(number, lambda: [each.cancel() for each in running])
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            server.should_exit = True
            await serving

    def _stop(self, status: int) -> None:
        self._status = status
        self._stopped.set()

    async def _until_stopped(self, running: Sequence[asyncio.Task[None]]) -> int:
        started = time.monotonic()
        names = ", ".join(each.planned.name for each in self._processes)
        _print(f"Starting {names} below {self._url} …")
        ready = asyncio.gather(*(_report_start(each, started) for each in self._processes))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [ready, stopped, *running]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._print_table(time.monotonic() - started)
                await asyncio.wait([stopped, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ready, stopped):
                each.cancel()
            await asyncio.gather(ready, stopped, return_exceptions=True)
        for task in running:
            if task.done():
                try:
                    task.result()
                except FleetFailed as error:
                    _print(str(error))
                    return 1
        return self._status

    def _print_table(self, seconds: float) -> None:
        replicas: dict[str, list[str]] = {}
        for each in self._processes:
            own = replicas.setdefault(each.planned.service, [])
            own.append(each.replica.url.removeprefix("http://"))
        for name, own in replicas.items():
            _print(f"{name:8} {self._url}/{name:8} {', '.join(own)}")
        _print(
            f"Ready after {seconds:.1f} s: {self._url}. Logs are in {self._logs}. Ctrl-C stops all."
        )


async def _report_start(process: ReplicaProcess, started: float) -> None:
    """Print when a replica is ready, and until then from time to time what it does."""
    while not process.replica.has_been_ready.is_set():
        try:
            async with asyncio.timeout(timeouts.REPORT_SECONDS):
                await process.replica.has_been_ready.wait()
            state = "is ready"
        except TimeoutError:
            state = f"is starting; its log ends with: {process.last_line[:_MAX_SHOWN]}"
        _print(f"{time.monotonic() - started:5.1f} s  {process.planned.name} {state}")
