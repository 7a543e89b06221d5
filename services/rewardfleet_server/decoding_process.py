"""Decoding of large bodies in a child process, where it does not block the event loop.

A parser of JSON holds the interpreter's lock: seconds for a body with millions of values. The body
and the result are files in memory. The result is pickled, since nothing else copies models and
arrays as fast; only classes of data can be loaded from it, so nothing that a body does to the child
can run code in the service.
"""

import ctypes
import dataclasses
import enum
import gc
import json
import logging
import mmap
import os
import pickle
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from pydantic import BaseModel

from rewardfleet.wire.errors import InternalError, InvalidRequest, RewardFleetError, Unavailable

from .child_process import end_with_parent

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds that decoding one body may take.
_DECODE_SECONDS = 30.0
#: Seconds that the process may take to start.
_START_SECONDS = 60.0
#: Memory of the process, in addition to what it has at its start: a fixed part, and a multiple of
#: the largest body.
_FIXED_BYTES, _BYTES_PER_BODY_BYTE = 2**30, 16
#: Niceness of the process; the event loop's is 0.
_NICE = 10
#: Limit on a task, which is a name and two numbers.
_MAX_TASK_BYTES = 4096
#: The child, which imports what its parent does.
_PROGRAM = (
    f"import sys, json; sys.path[:] = json.loads(sys.argv[1]); import {__name__} as m; m.main()"
)
#: What arrays are loaded with.
_ARRAY_PARTS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
}
#: Bytes of a body that are searched at once.
_SLICE = 2**20


class ComplexityLimits(NamedTuple):
    """Limits on what a body contains outside of strings.

    Attributes:
        fields: The most fields, by colons.
        values: The most values, by commas and opening brackets.
    """

    fields: int
    values: int


class MemoryFile:
    """A file in memory, which another process can read. It is gone as soon as this object is.

    Attributes:
        fd: Its descriptor.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("rewardfleet")
        weakref.finalize(self, os.close, self.fd)

    def write(self, content: bytes) -> None:
        """Append bytes."""
        view = memoryview(content)
        while view:
            view = view[os.write(self.fd, view) :]


class DecodingProcess:
    """Decodes bodies, one at a time, in a child process that starts with the first of them.

    Args:
        max_bytes: Size of the largest body.
    """

    def __init__(self, max_bytes: int) -> None:
        self._memory = _FIXED_BYTES + _BYTES_PER_BODY_BYTE * max_bytes
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def decode(
        self,
        decode: Callable[[bytes], T],
        body: MemoryFile,
        limits: ComplexityLimits,
    ) -> T:
        """Decode a body. Blocks; call it from one thread, which must outlive the process.

        Args:
            decode: Decodes it to data: models, dataclasses, structs, arrays, enumerations and
                built-in types. It is a function of a module, or a partial one whose arguments are
                such functions or classes.
            body: The body, which is emptied.
            limits: On what the body contains.

        Raises:
            RewardFleetError: As `decode` raises it, or the body takes too much time or memory.
        """
        task = json.dumps([_names(decode), limits]).encode()
        result = MemoryFile()
        try:
            self._started().run(task, body.fd, result.fd)
        except OSError as error:  # also after a timeout
            raise self._failure(error) from None
        decoded: T = _result(result)
        return decoded

    def _failure(self, error: OSError) -> RewardFleetError:
        """End the process, which did not answer, and return the failure of the body."""
        code = self._stop()
        if self._closed:
            return Unavailable("the service is shutting down", retry_after=1)
        log.warning("the process that decodes large bodies is replaced: %r", error)
        if isinstance(error, TimeoutError) or code == -signal.SIGABRT:  # no memory is an abort
            return InvalidRequest("the body takes too much time or memory to decode")
        return Unavailable("the process that decodes large bodies ended", retry_after=1)

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._stop()

    def _started(self) -> "_Child":
        with self._lock:
            if self._closed:
                raise Unavailable("the service is shutting down", retry_after=1)
            if self._child is None or not self._child.is_alive():
                self._child = _Child(self._memory)
            return self._child

    def _stop(self) -> int | None:
        with self._lock:
            child, self._child = self._child, None
            return None if child is None else child.stop()


class _Child:
    def __init__(self, memory: int) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [json.dumps(sys.path), *map(str, (theirs.fileno(), os.getpid(), memory))]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command
                [sys.executable, "-P", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            self._wait(_START_SECONDS)
        except OSError as error:  # no fault of the body
            self.stop()
            log.warning("the process that decodes large bodies did not start: %r", error)
            raise Unavailable(
                "the process that decodes large bodies did not start", retry_after=1
            ) from error

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, task: bytes, body: int, result: int) -> None:
        """Run a task.

        Raises:
            OSError: It was not completed; a TimeoutError if it took too long.
        """
        socket.send_fds(self._channel, [task], [body, result])
        self._wait(_DECODE_SECONDS)

    def _wait(self, seconds: float) -> None:
        self._channel.settimeout(seconds)
        if not self._channel.recv(1):
            raise ConnectionError(f"it ended with status {self._process.poll()}")

    def stop(self) -> int:
        """End the process; return its status, also if it had ended before."""
        self._process.kill()
        self._channel.close()
        return self._process.wait()


def _result(file: MemoryFile) -> Any:
    with open(file.fd, "rb", closefd=False) as stream:
        stream.seek(0)
        gc.disable()  # its passes over millions of new objects would take longer than the rest
        try:
            failure, value = _DataUnpickler(stream).load()
        finally:
            gc.enable()
    if failure is not None:
        raise RewardFleetError.from_problem(failure)
    return value


def _names(function: Callable[..., Any]) -> list[str]:
    parts = [function]
    if isinstance(function, partial):
        parts = [function.func, *function.args]
    return [f"{part.__module__}:{part.__qualname__}" for part in parts]


class _DataPickler(pickle.Pickler):
    """Writes enumerations by value; by name, as Python before 3.12 does, they need `getattr`."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle an enumeration; NotImplemented for other values."""
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class _DataUnpickler(pickle.Unpickler):
    """Loads data only, see "Restricting Globals" in the documentation of pickle."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of data.

        Raises:
            UnpicklingError: It is something else.
        """
        found = super().find_class(module, name) if module in sys.modules else None
        if (module, name) in _ARRAY_PARTS or (isinstance(found, type) and _is_data(found)):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def _is_data(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(
        kind, tuple | BaseModel | msgspec.Struct | enum.Enum | RewardFleetError
    )


def check_complexity(body: bytes, limits: ComplexityLimits) -> None:
    """Refuse a body that would take far more memory and time than its bytes.

    Raises:
        InvalidRequest: It has too many fields or values.
    """
    if is_simple(body, limits):
        return
    fields = values = 0
    is_inside, rest = False, b""
    for start in range(0, len(body), _SLICE):
        part = rest + body[start : start + _SLICE]
        rest = b""
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # half of an escape
            part, rest = part[:-1], b"\\"
        characters = np.frombuffer(part.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
        if not characters.size:
            continue
        # In a string is what has an odd number of quotes before it. (A parser goes no further than
        # to a backslash outside of strings.)
        inside = np.bitwise_xor.accumulate(characters == ord('"')) ^ is_inside
        is_inside = bool(inside[-1])
        outside = characters[~inside].tobytes()
        fields += outside.count(b":")
        values += sum(map(outside.count, (b",", b"[", b"{")))
        if fields > limits.fields or values > limits.values:
            raise InvalidRequest(
                f"the body has too many fields or values; at most {limits.fields} fields and "
                f"{limits.values} values"
            )


def is_simple(body: bytes, limits: ComplexityLimits) -> bool:
    """Return whether a body meets limits even if what its strings contain is counted as well."""
    return (len(body) <= limits.fields or body.count(b":") <= limits.fields) and (
        len(body) <= limits.values or sum(map(body.count, (b",", b"[", b"{"))) <= limits.values
    )


def _decode(task: bytes, descriptor: int) -> Any:
    names, limits = json.loads(task)
    decode, *arguments = map(pkgutil.resolve_name, names)
    with open(descriptor, "rb", closefd=False) as stream:
        stream.seek(0)
        body = stream.read()
    os.ftruncate(descriptor, 0)
    check_complexity(body, ComplexityLimits(*limits))
    return decode(*arguments, body)


def _run(task: bytes, body: int, result: int) -> None:
    """Run a task, and write its result or its failure."""
    outcome: tuple[Any, Any]
    try:
        outcome = None, _decode(task, body)
    except RewardFleetError as error:
        outcome = error.problem(), None
    except MemoryError:
        os.abort()
    except Exception as error:  # noqa: BLE001 - a bug, whose traceback is for the log
        traceback.print_exc()
        outcome = InternalError(f"{type(error).__name__}: {error}").problem(), None
    with open(result, "wb", closefd=False) as stream:
        _DataPickler(stream, protocol=5).dump(outcome)


def _serve(channel: socket.socket) -> None:
    """Run tasks until the parent closes the channel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    channel.send(b".")
    while True:
        task, descriptors, *_ = socket.recv_fds(channel, _MAX_TASK_BYTES, 2)
        if not task:
            return
        try:
            _run(task, *descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if trim is not None:  # else it is another C library
            trim(0)
        channel.send(b".")


def main() -> None:
    """Be the child, whose arguments are its path of modules, channel, parent and memory."""
    channel, parent, memory = map(int, sys.argv[2:])
    end_with_parent(parent, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends it
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - not a file
        used = int(statm.read().split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    with socket.socket(fileno=channel) as connection:
        _serve(connection)
