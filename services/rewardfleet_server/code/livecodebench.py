"""The tests of a row of LiveCodeBench, as SandboxFusion has it."""

import base64
import binascii
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from rewardfleet.wire.errors import InvalidRequest

#: Bytes that compressed tests may come to.
_MAX_BYTES = 128 * 2**20
#: What a pickle of texts is made of. None of it calls anything.
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_FRAME = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
_DICT = {"EMPTY_DICT", "MARK", "SETITEM", "SETITEMS"}

#: What a program may use without an import, as in LiveCodeBench's own checker.
_STARS = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json builtins typing"
)
_NAMES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json"
)
_IMPORTS = "; ".join(
    [f"from {name} import *" for name in _STARS.split()]
    + [f"import {name}" for name in _NAMES.split()]
    + ["sys.setrecursionlimit(600_000)"]
)


def with_its_imports(program: str, tests: Mapping[str, Any]) -> str:
    """Return the program after what it may take for granted: one more line.

    What is asked for is not among it: `operator.add` is nobody's answer.
    """
    forgotten = f"globals().pop({tests.get('fn_name')!r}, None)"
    return f"{_IMPORTS}; {forgotten}\n{program}"


def tests_of(test: Any) -> dict[str, Any]:
    """Return the tests, as a `CodeRequest` has them.

    Args:
        test: `{"input_output": …}`, or its JSON, or base64 of its compressed pickle.

    Raises:
        InvalidRequest: It is none of these.
    """
    try:
        row = _from_text(test) if isinstance(test, str) else test
        given = row["input_output"]
        if isinstance(given, str):
            given = from_json(given)
        pairs = list(zip(given["inputs"], given["outputs"], strict=True))
        if given.get("fn_name") is None:
            cases = [{"stdin": _joined(stdin), "stdout": _joined(out)} for stdin, out in pairs]
            return {"kind": "stdio", "cases": cases, "checker": "float", "tolerance": 1e-5}
        return {
            "kind": "functional",
            "fn_name": given["fn_name"],
            "cases": [
                {"args": list(map(from_json, lines.split("\n"))), "expected": from_json(out)}
                for lines, out in pairs
            ],
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            "config.provided_data.test: give LiveCodeBench's `input_output` with `inputs` and "
            f"`outputs` ({type(error).__name__}: {str(error)[:200]})"
        ) from None


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "\n".join(text)


def _from_text(test: str) -> Any:
    try:
        return from_json(test)
    except ValueError:
        return _unpickled(_decompressed(test))


def _decompressed(test: str) -> bytes:
    try:
        reader = zlib.decompressobj()
        content = reader.decompress(base64.b64decode(test, validate=True), _MAX_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"neither JSON nor base64 of what zlib compressed: {error}") from None
    if not reader.eof:
        raise ValueError(f"cut off, or larger than {_MAX_BYTES // 2**20} MiB")
    return content


def _unpickled(content: bytes) -> Any:
    """Read a pickle of a text, or of a flat object of texts, without running it as pickles are.

    Raises:
        ValueError: It holds anything else.
    """
    texts: list[str] = []
    is_dict = False
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in _TEXTS:
            texts.append(str(argument))
        elif operation.name in _DICT:
            is_dict = True
        elif operation.name not in _FRAME:
            raise ValueError(f"the pickle holds more than texts ({operation.name})")
    if is_dict:
        return dict(zip(texts[::2], texts[1::2], strict=True))
    if len(texts) != 1:
        raise ValueError("the pickle holds no text")
    return from_json(texts[0])
