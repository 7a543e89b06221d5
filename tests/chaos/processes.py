"""A service in a process that can be killed, frozen and started again on the same port."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..running import answers, own_environment

_START_SECONDS = 60.0


class ServiceProcess:
    """A process of `rewardfleet serve`, or of another program that serves the same port.

    Args:
        folder: Where its log goes.
        arguments: Of `rewardfleet serve`, without the port.

    Attributes:
        url: Its base URL, which stays the same.
        pid: Its process id, of the last start.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._port = free_port()
        self._log = folder / f"{arguments[0]}-{self._port}.log"
        self._command = [
            sys.executable, "-m", "rewardfleet_server", "serve", *arguments,
            "--port", str(self._port), "--set", "log_level=warning",
        ]  # fmt: skip
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        """Start it; it is not ready yet."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log, env=own_environment())

    def wait_until_ready(self) -> None:
        wait_until(self._is_ready, _START_SECONDS)

    def _is_ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log
        time.sleep(0.05)
        return answers(f"{self.url}/readyz")

    def kill(self) -> None:
        """Kill it, as the kernel does when memory runs out."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """End it in order: admitted requests finish."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(60)
        self._process = None

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.thaw()
            self.kill()
