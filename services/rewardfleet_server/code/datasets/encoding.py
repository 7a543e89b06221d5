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
_AROUND_OBJECT = {"EMPTY_DICT", "MARK", "SETITEM", "SETITEMS"}
_AROUND_TEXT = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


class RowError(Exception):
    """Why a row cannot be read."""


def json_of(given: Any, column: str) -> Any:
    """Read JSON, where it still is text."""
    return read_json(given, column) if isinstance(given, str) else given


def read_json(text: Any, column: str) -> Any:
    """Read JSON's text.

    Raises:
        RowError: It is none.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise RowError(f"{column}: no JSON: {str(error)[:100]}") from None


def decode_column(given: Any, column: str, *, may_be_object: bool = False) -> Any:
    """Read JSON, or LiveCodeBench's base64 of a compressed pickle of its text.

    Args:
        given: One of these, or what was JSON already.
        column: What to call it in a problem.
        may_be_object: Whether the pickle may hold a flat object of texts, as SandboxFusion's do.

    Raises:
        RowError: It is neither, or is larger than `MAX_UNPACKED`.
    """
    if not isinstance(given, str) or given.lstrip()[:1] in {"{", "["}:
        return json_of(given, column)
    try:
        compressed = base64.b64decode("".join(given.split()), validate=True)
    except ValueError:
        raise RowError(f"{column}: neither JSON nor base64") from None
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(compressed, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise RowError(f"{column}: not compressed by zlib: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise RowError(f"{column}: decode_column, it is above {MAX_UNPACKED >> 20} MiB")
    if not unpacker.eof:
        raise RowError(f"{column}: it is cut short")
    texts, is_object = _pickled_texts(content, column)
    if is_object and may_be_object and len(texts) % 2 == 0:
        return dict(zip(texts[::2], texts[1::2], strict=True))
    if is_object or len(texts) != 1:
        raise RowError(f"{column}: the pickle is more than a text, or none")
    return read_json(texts[0], column)


def _pickled_texts(content: bytes, column: str) -> tuple[list[str], bool]:
    """Return the texts of a pickle, and whether an object is around them. Nothing is unpickled.

    Its opcodes are read, none is run: Python's own unpickler, even with no class to find, can be
    made to take all memory.
    """
    texts: list[str] = []
    is_object = False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name in _AROUND_OBJECT:
                is_object = True
            elif opcode.name not in _AROUND_TEXT:
                raise RowError(f"{column}: the pickle is more than a text ({opcode.name})")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise RowError(f"{column}: no pickle: {str(error)[:100]}") from None
    return texts, is_object
