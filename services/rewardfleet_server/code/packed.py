"""JSON in the columns of a row: as it is, as text, or as LiveCodeBench packs it."""

import base64
import json
import pickletools
import zlib
from typing import Any

#: Bytes that a packed column may come to.
MAX_UNPACKED = 32 * 2**20

#: All that the pickle of a text is made of.
_TEXT = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_AROUND_TEXT = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


class Unreadable(Exception):
    """Why a row cannot be read."""


def json_of(given: Any, column: str) -> Any:
    """Read JSON, where it still is text."""
    return read_json(given, column) if isinstance(given, str) else given


def read_json(text: Any, column: str) -> Any:
    """Read JSON's text.

    Raises:
        Unreadable: It is none.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"{column}: no JSON: {str(error)[:100]}") from None


def unpacked(given: Any, column: str) -> Any:
    """Read JSON, or LiveCodeBench's base64 of a compressed pickle of its text.

    Raises:
        Unreadable: It is neither, or is larger than `MAX_UNPACKED`.
    """
    if not isinstance(given, str) or given.lstrip()[:1] in {"{", "["}:
        return json_of(given, column)
    try:
        compressed = base64.b64decode("".join(given.split()), validate=True)
    except ValueError:
        raise Unreadable(f"{column}: neither JSON nor base64") from None
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(compressed, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise Unreadable(f"{column}: not compressed by zlib: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise Unreadable(f"{column}: unpacked, it is above {MAX_UNPACKED >> 20} MiB")
    if not unpacker.eof:
        raise Unreadable(f"{column}: it is cut short")
    return read_json(_pickled_text(content, column), column)


def _pickled_text(content: bytes, column: str) -> str:
    """Return the text that a pickle holds, without unpickling: its opcodes are read, none is run.

    Python's own unpickler, even with no class to find, can be made to take all memory.
    """
    text = None
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _TEXT and text is None:
                text = argument
            elif opcode.name not in _AROUND_TEXT:
                raise Unreadable(f"{column}: the pickle is more than a text ({opcode.name})")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise Unreadable(f"{column}: no pickle: {str(error)[:100]}") from None
    if not isinstance(text, str):
        raise Unreadable(f"{column}: the pickle holds no text")
    return text
