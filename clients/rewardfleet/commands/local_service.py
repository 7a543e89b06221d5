"""Servers that a command starts for itself."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO

#: Seconds until a service is ready: a vision-language model takes minutes to load.
_START_SECONDS = 1800.0
#: Seconds in which it ends by itself.
_STOP_SECONDS = 60.0
#: How much of its log is shown if it does not start.
_SHOWN_LINES = 15
#: The command, in a process that does not outlive this one.
_PROGRAM = """
import signal, sys
from rewardfleet_server.system.child_process import end_with_parent
end_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from rewardfleet.commands.main import main
sys.exit(main(sys.argv[1:]))
"""


def local_service(service: str, options: str) -> AbstractContextManager[str]:
    """Run a service for the block, which gets its base URL.

    Args:
        options: Its options, as in a shell.

    Raises:
        ValueError: It does not start; the message has the end of its log.
    """
    arguments = ["serve", service, "--port", "0", *shlex.split(options)]
    return running(arguments, r'"address": ?"(.+?)"')


@contextlib.contextmanager
def running(arguments: Sequence[str], address: str) -> Iterator[str]:
    """Run a server by a command for the block, which gets its base URL.

    Args:
        arguments: Of `rewardfleet`.
        address: The pattern of the part of its log that has the URL, once it listens.

    Raises:
        ValueError: It does not start; the message has the end of its log.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(  # noqa: S603 - this command itself
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the scoring first
        )
        try:
            yield _address(process, log, address)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[bytes]", log: IO[str], address: str) -> str:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up:
        ended = process.poll() is not None
        log.seek(0)
        text = log.read()
        if found := re.search(address, text):
            return found[1]
        if ended:
            shown = "\n".join(text.splitlines()[-_SHOWN_LINES:])
            raise ValueError(f"the service did not start:\n{shown}")
        time.sleep(0.1)
    raise ValueError(f"the service was not ready within {_START_SECONDS:g} s")
