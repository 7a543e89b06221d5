"""Decoding of large bodies in a child process, where it does not block the event loop.

A parser of JSON holds the interpreter's lock: seconds for a body with millions of values. The body
and the result are files in memory. The result is pickled, since nothing else copies models and
arrays as fast; only classes of data can be loaded from it, so nothing that a body does to the child
can run code in the service.
"""

import dataclasses
import enum
import gc
import mmap
import os
import pickle
import pkgutil
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rewardfleet.wire.errors import InternalError, InvalidRequest, RewardFleetError, Unavailable
from rewardfleet_server.system.child_process import MemoryFile, TaskLost, TaskProcess, TaskTooLarge

T = TypeVar("T")

#: Seconds that decoding one body may take.
_DECODE_SECONDS = 30.0
#: Memory of the process, in addition to what it has at its start: a fixed part, and a multiple of
#: the largest body.
_FIXED_BYTES, _BYTES_PER_BODY_BYTE = 2**30, 16
#: Niceness of the process; the event loop's is 0.
_NICE = 10
#: What arrays are loaded with.
_ARRAY_PARTS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
}
#: The base classes of what else is loaded, besides dataclasses.
_DATA = (tuple, BaseModel, msgspec.Struct, enum.Enum, RewardFleetError)
#: Bytes of a body that are searched at once.
_SLICE = 2**20
#: The sample from which the time of parsing is estimated: a block of 64 bytes for so many bytes of
#: the body, and no more than 1024 blocks.
_BYTES_PER_BLOCK, _MAX_BLOCKS, _BLOCK = 2048, 1024, 64
_random = np.random.default_rng()
#: What parsing takes, in nanoseconds per byte, as measured with the models of the services on a
#: slow machine: base64; bytes beyond ASCII; escapes; fields and values; digits of long numbers.
_NANOSECONDS = np.full(256, 1.2)
_NANOSECONDS[128:] = 5
_NANOSECONDS[ord("\\")] = 30
_NANOSECONDS[ord(":")] = 600
_NANOSECONDS[list(b",[{")] = 400
_NS_PER_LONG_DIGIT = 70


class ComplexityLimits(NamedTuple):
    """Limits on what a body contains outside of strings."""

    fields: int  #: the most fields, by colons
    values: int  #: the most values, by commas and opening brackets


class BodyParser:
    """Decodes bodies, one at a time, in a child process that starts with the first of them."""

    def __init__(self, max_bytes: int) -> None:
        memory = _FIXED_BYTES + _BYTES_PER_BODY_BYTE * max_bytes
        self._process = TaskProcess("decodes large bodies", run_task, memory=memory, nice=_NICE)

    def decode(self, decode: Callable[[bytes], T], body: MemoryFile, limits: ComplexityLimits) -> T:
        """Decode a body. Blocks; call it from one thread, with which the process ends.

        Args:
            decode: Decodes it to data: models, dataclasses, structs, arrays, enumerations and
                built-in types. It is a function of a module, or a partial one whose arguments are
                such functions or classes.
            body: It is emptied.

        Raises:
            RewardFleetError: As `decode` raises it, or the body takes too much time or memory.
        """
        result = MemoryFile()
        try:
            self._process.run([_names(decode), limits], body, result, seconds=_DECODE_SECONDS)
        except TaskTooLarge:
            raise InvalidRequest("the body takes too much time or memory to decode") from None
        except TaskLost as error:
            raise Unavailable(str(error), retry_after=1) from error
        with open(result.fd, "rb", closefd=False) as stream:
            stream.seek(0)
            gc.disable()  # its passes over millions of new objects would take longer than the rest
            try:
                failure, value = _DataUnpickler(stream).load()
            finally:
                gc.enable()
        if failure is not None:
            raise RewardFleetError.from_problem(failure)
        decoded: T = value
        return decoded

    def close(self) -> None:
        self._process.close()


def _names(function: Callable[..., Any]) -> list[str]:
    parts = [function]
    if isinstance(function, partial):
        parts = [function.func, *function.args]
    return [f"{part.__module__}:{part.__qualname__}" for part in parts]


class _DataPickler(pickle.Pickler):
    """Writes enumerations by value; by name, as Python before 3.12 does, they need `getattr`."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class _DataUnpickler(pickle.Unpickler):
    """Loads data only, see "Restricting Globals" in the documentation of pickle."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in sys.modules else None
        is_data = isinstance(found, type) and (
            dataclasses.is_dataclass(found) or issubclass(found, _DATA)
        )
        if is_data or (module, name) in _ARRAY_PARTS:
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def parse_seconds(body: bytes | mmap.mmap) -> float:
    """Estimate how long parsing a body holds the interpreter, from a random sample of its bytes.

    It has more bytes than a block.
    """
    count = min(len(body) // _BYTES_PER_BLOCK + 1, _MAX_BLOCKS)
    starts = _random.integers(0, len(body) - _BLOCK, count)
    sample = np.frombuffer(body, np.uint8)[starts[:, None] + np.arange(_BLOCK)]
    nanoseconds = _NANOSECONDS[sample].mean() * len(body)
    are_digits = ((sample >= ord("0")) & (sample <= ord("9"))).all(axis=1)
    return float(nanoseconds + are_digits.mean() * len(body) * _NS_PER_LONG_DIGIT) / 1e9


def check_complexity(body: bytes, limits: ComplexityLimits) -> None:
    """Raise InvalidRequest if a body would take far more memory and time than its bytes."""
    if _is_simple(body, limits):
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
        outside = characters[~inside]
        fields += _count(outside, b":")
        values += _count(outside, b",[{")
        if fields > limits.fields or values > limits.values:
            allowed = f"at most {limits.fields} fields and {limits.values} values"
            raise InvalidRequest(f"the body has too many fields or values; {allowed}")


def _is_simple(body: bytes, limits: ComplexityLimits) -> bool:
    """Return whether a body meets limits even if what its strings contain is counted as well."""
    starts, characters = range(0, len(body), _SLICE), np.frombuffer(body, np.uint8)
    return all(
        len(body) <= most or sum(_count(characters[at : at + _SLICE], of) for at in starts) <= most
        for of, most in ((b":", limits.fields), (b",[{", limits.values))
    )


def _count(characters: NDArray[np.uint8], names: bytes) -> int:
    """Count characters, a tenth of the time of `bytes.count` and without the interpreter's lock."""
    return sum(int(np.count_nonzero(characters == name)) for name in names)


def _decode(task: Any, descriptor: int) -> Any:
    """Decode a body, given the names of what decodes it, and limits on what it contains."""
    names, limits = task
    decode, *arguments = map(pkgutil.resolve_name, names)
    with open(descriptor, "rb", closefd=False) as stream:
        stream.seek(0)
        body = stream.read()
    os.ftruncate(descriptor, 0)
    check_complexity(body, ComplexityLimits(*limits))
    return decode(*arguments, body)


def run_task(task: Any, body: int, result: int) -> None:
    """Decode a body in the child, and write the result or the failure; see `TaskProcess`."""
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
