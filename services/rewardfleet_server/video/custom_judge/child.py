"""The process of a judge that the user provides, which `process.py` starts by this module's name.

It imports little besides the judge's own module, so that it starts fast. Messages in both
directions are JSON after their length in bytes. They have a socket of their own, so whatever the
judge prints or reads does not disturb them.
"""

import argparse
import asyncio
import contextlib
import decimal
import faulthandler
import inspect
import json
import logging
import numbers
import os
import pkgutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rewardfleet_server.system.child_process import end_with_parent

LENGTH = struct.Struct(">I")  #: the length of a message
MAX_BYTES = 64 * 2**20  #: limit on a message to this process
#: Limit on one from it, as the service's event loop decodes it.
MAX_ANSWER_BYTES = 4 * 2**20
#: Limits on parts of error messages, in characters.
_MAX_ERROR, _MAX_TRACEBACK, _MAX_RESULT = 2_000, 20_000, 200


class Channel:
    """The connection to the service, by a socket that blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def receive(self) -> Any:
        """Wait for a message. If the service has ended, this process ends."""
        header = self._file.read(LENGTH.size)
        content = self._file.read(*LENGTH.unpack(header)) if len(header) == LENGTH.size else b""
        if not content:
            os._exit(0)
        return json.loads(content)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Lone surrogates, which are not valid in UTF-8, become `?`."""
        content = json.dumps(message, ensure_ascii=False).encode(errors="replace")
        if len(content) > MAX_ANSWER_BYTES:
            error = f"score_video returned {len(content)} bytes, more than {MAX_ANSWER_BYTES}"
            content = json.dumps({"id": message.get("id"), "error": error}).encode()
        with self._lock:
            try:
                self._connection.sendall(LENGTH.pack(len(content)) + content)
            except OSError:  # the service has ended
                os._exit(0)


def main() -> None:
    """Build the judge and answer calls until the service ends."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    end_with_parent(int(sys.argv[2]), signal.SIGKILL)
    del sys.argv[1:]
    faulthandler.enable()
    channel = Channel(connection)
    order = channel.receive()
    logging.basicConfig(level=order["log_level"], format="%(levelname)s %(name)s: %(message)s")
    sys.path[:] = order["path"]
    try:
        score_video = _load(order["factory"], argparse.Namespace(**order["settings"]))
    except BaseException as error:  # noqa: BLE001 - SystemExit as well: the service says why
        channel.send({"id": 0, **_failure(error)})
        os._exit(1)
    is_async = inspect.iscoroutinefunction(score_video)
    channel.send({"id": 0, "is_async": is_async})
    try:
        if is_async:
            _serve_coroutines(channel, score_video)
        else:
            _serve_threads(channel, score_video, order["threads"])
    except BaseException:  # noqa: BLE001 - whatever ends the event loop ends the process
        traceback.print_exc()
    os._exit(1)  # threads that do not end must not delay it


def _load(factory: str, settings: argparse.Namespace) -> Callable[..., Any]:
    backend = pkgutil.resolve_name(factory)(settings)
    score_video: Callable[..., Any] | None = getattr(backend, "score_video", None)
    if not callable(score_video):
        raise TypeError("its backend has no score_video")
    return score_video


def _serve_threads(channel: Channel, score_video: Callable[..., Any], threads: int) -> None:
    def score(number: int, arguments: list[Any]) -> None:
        try:
            answer = _checked(score_video(*arguments))
        except BaseException as error:  # noqa: BLE001 - SystemExit ends neither thread nor process
            answer = _failure(error)
        channel.send({"id": number, **answer})

    pool = ThreadPoolExecutor(threads, thread_name_prefix="custom-judge")
    while True:
        message = channel.receive()
        if "arguments" in message:  # a thread cannot be cancelled
            pool.submit(score, message["id"], message["arguments"])


def _serve_coroutines(channel: Channel, score_video: Callable[..., Any]) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    tasks: dict[int, asyncio.Task[None]] = {}

    async def score(number: int, arguments: list[Any]) -> None:
        try:
            answer = _checked(await score_video(*arguments))
        except BaseException as error:  # noqa: BLE001 - cancelled or SystemExit: answered as well
            answer = _failure(error)
        del tasks[number]
        channel.send({"id": number, **answer})

    def handle(message: dict[str, Any]) -> None:
        number = message["id"]
        if "arguments" in message:
            tasks[number] = loop.create_task(score(number, message["arguments"]))
        elif number in tasks:
            tasks[number].cancel()

    def receive() -> None:
        while True:
            loop.call_soon_threadsafe(handle, channel.receive())

    threading.Thread(target=receive, name="receive", daemon=True).start()
    loop.run_forever()


def _checked(result: object) -> dict[str, Any]:
    """Return the score and the text; a score of None is an abstention."""
    match result:
        case None:
            return {"score": None, "text": "score_video returned None"}
        case (None, str() as text):
            return {"score": None, "text": str(text)}
        case (given, str() as text) if (score := _number(given)) is not None and 0 <= score <= 1:
            return {"score": score, "text": str(text)}
    return {
        "error": f"score_video returned {str(result)[:_MAX_RESULT]!r}; it must return "
        "(score, raw_output_text) with a number in [0, 1] and a text, or None to abstain"
    }


def _number(given: Any) -> float | None:
    """Return a number of Python, NumPy, PyTorch or similar libraries, or None."""
    if getattr(given, "ndim", None) == 0:  # an array or a tensor of one number
        given = given.tolist()  # of a masked number: None
    is_number = isinstance(given, numbers.Real | decimal.Decimal) and not isinstance(given, bool)
    return float(given) if is_number else None


def _failure(error: BaseException) -> dict[str, Any]:
    """Return what the service needs to know about an exception."""
    text = "its text cannot be read"
    with contextlib.suppress(BaseException):
        text = str(error)[:_MAX_ERROR]
    trace = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]
    failure = {"error": f"{type(error).__name__}: {text}", "traceback": trace}
    # A judge may raise the failures that services report; they are not imported for it.
    errors = sys.modules.get("rewardfleet.wire.errors")
    if errors is not None and isinstance(error, errors.RewardFleetError):
        failure["problem"] = error.problem().model_dump(mode="json")
    return failure


if __name__ == "__main__":
    main()
