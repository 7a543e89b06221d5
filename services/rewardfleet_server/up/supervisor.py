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

from rich.console import Console
from rich.table import Table

from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.server import GracefulServer, run_on_fast_loop
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.serve import bind, raise_descriptor_limit, url_of
from rewardfleet_server.settings import is_loopback
from rewardfleet_server.system.diagnosis import Diagnosis, check_redis_servers

from .gateway import Gateway
from .line import most_waiting
from .processes import FleetFailed, ReplicaProcess
from .replicas import Replica
from .settings import FleetConfig, PlannedReplica, plan

log = logging.getLogger(__name__)

#: Columns where the output is not a terminal.
_LOG_WIDTH = 200


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
    width = None if sys.stderr.isatty() else _LOG_WIDTH
    console = Console(stderr=True, highlight=False, soft_wrap=True, width=width)
    listener = bind(config.host, config.port)  # first, so that no replica is given its port
    replicas = plan(config)
    if not _works(replicas, console):
        return 1
    if config.api_key_file is None and not is_loopback(config.host):
        log.warning("NO AUTHENTICATION: anyone who can reach %s may use the fleet", config.host)
    max_waiting = most_waiting(raise_descriptor_limit(), len(replicas))
    folder = config.data_dir.expanduser()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        fleet = _Fleet(
            config, listener, replicas, console, show_logs=show_logs, max_waiting=max_waiting
        )
        return run_on_fast_loop(fleet.run())


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


def _works(replicas: Sequence[PlannedReplica], console: Console) -> bool:
    """Report what would keep the services from starting; return whether nothing does."""
    failures = 0
    for diagnosis in _diagnoses(replicas):
        has_failed = diagnosis.status == "failed"
        if not has_failed and not (diagnosis.status == "note" and diagnosis.fix):
            continue
        failures += has_failed
        console.print(f"{diagnosis.status:8}{diagnosis.what}", markup=False)
        if diagnosis.fix:
            console.print(f"        fix: {diagnosis.fix}", markup=False)
    if failures:
        console.print("Nothing was started. `rewardfleet doctor` reports more.")
    return not failures


def _diagnoses(replicas: Sequence[PlannedReplica]) -> Iterator[Diagnosis]:
    for replica in replicas:
        try:
            bind(replica.settings.host, replica.settings.port).close()
        except ValueError as error:
            yield Diagnosis("failed", f"{replica.name}: {error}", "end what listens there")
        if replica.number == 0:
            yield from SERVICES[replica.service].load_checks()(replica.settings)
    yield from check_redis_servers((each.settings for each in replicas), unreachable="note")


class _Fleet:
    """A running fleet."""

    def __init__(
        self,
        config: FleetConfig,
        listener: socket.socket,
        planned: Sequence[PlannedReplica],
        console: Console,
        *,
        show_logs: bool,
        max_waiting: int,
    ) -> None:
        self._console = console
        self._listener = listener
        folder = config.data_dir.expanduser() / "logs"
        self._processes: list[ReplicaProcess] = []
        self._logs = folder
        by_service: dict[str, list[Replica]] = {}
        for each in planned:
            replica = Replica(each.service, f"http://127.0.0.1:{each.settings.port}")
            peers = by_service.setdefault(each.service, [])
            peers.append(replica)
            show = self._show_line if show_logs else None
            process = ReplicaProcess(each, replica, folder / f"{each.name}.log", show, peers)
            self._processes.append(process)
        self._url = url_of(self._listener)
        hosts = AllowedHosts(
            config.allowed_host,
            listens_on=config.host,
            has_keys=config.api_key_file is not None,
        )
        self._gateway = Gateway(by_service, hosts, max_waiting=max_waiting)
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal arrives or a replica cannot be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)
        server = GracefulServer(self._gateway, handles_signals=False)
        serving = asyncio.create_task(server.serve([self._listener]))
        running = [asyncio.create_task(each.run()) for each in self._processes]
        try:
            return await self._until_stopped(running)
        finally:
            self._console.print("Stopping …")
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait
                loop.add_signal_handler(number, lambda: [each.cancel() for each in running])
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            server.should_exit = True
            await serving

    async def _until_stopped(self, running: Sequence[asyncio.Task[None]]) -> int:
        started = time.monotonic()
        ready = asyncio.gather(*(each.replica.has_been_ready.wait() for each in self._processes))
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
                    self._console.print(f"{error}", markup=False)
                    return 1
        return 0

    def _show_line(self, name: str, line: str) -> None:
        self._console.print(f"{name} | {line}", markup=False)

    def _print_table(self, seconds: float) -> None:
        table = Table(box=None, pad_edge=False, show_header=True)
        for column in ("service", "address", "replicas"):
            table.add_column(column, no_wrap=True)
        services = dict.fromkeys(each.planned.service for each in self._processes)
        for name in services:
            urls = [each.replica.url for each in self._processes if each.planned.service == name]
            table.add_row(name, f"{self._url}/{name}", ", ".join(urls))
        self._console.print(table)
        self._console.print(
            f"Ready after {seconds:.1f} s: {self._url}. Logs are in {self._logs}. Ctrl-C stops all."
        )
