"""Programs that tests and benchmarks start, each until a page of it answers."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from rewardfleet_server.testing import wait_until


@contextmanager
def running(
    command: Sequence[object],
    page: str,
    *,
    log: str | Path = os.devnull,
    seconds: float = 120.0,
    **options: object,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends, which begins once a page of it answers.

    Args:
        command: Its words.
        page: The URL.
        log: The file that gets its output.
        seconds: The most that its start may take.
        options: Of the process.
    """
    with open(log, "wb") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=output, **options)
    try:
        wait_until(lambda: process.poll() is not None or answers(page), seconds)
        assert process.poll() is None, Path(log).read_text()[-3000:]
        yield process
    finally:
        process.terminate()
        try:
            process.wait(90)
        finally:
            process.kill()  # unless it has ended


def answers(page: str) -> bool:
    with suppress(httpx.TransportError):  # it does not listen yet, or is busy
        return httpx.get(page, trust_env=False, verify=False, timeout=10).status_code == 200
    return False


def own_environment() -> dict[str, str]:
    """Return variables without settings, which would be those of the services."""
    others = ("REWARDFLEET_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(others)}


def output_of(*command: object, status: int = 0, seconds: float = 150.0, **options: object) -> str:
    """Run a program to its end, which must have a status; return its output, then that of errors.

    Args:
        command: Its words.
        status: The status.
        seconds: The most that it may take.
        options: Of the process.
    """
    given = {"capture_output": True, "text": True, "timeout": seconds, **options}
    done = subprocess.run([*map(str, command)], check=False, **given)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr
