"""Entries of shared stores: a value with its expiry, signed if there is a key."""

import hashlib
import hmac
import logging
import math
import struct
import time
from pathlib import Path

from .warning import RareWarning

#: The kinds of entries, which are their first byte.
_PLAIN, _SIGNED = b"p", b"s"
_EXPIRES_AT = struct.Struct("!d")
_LENGTH = struct.Struct("!Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
#: Characters of a signing key below which it is reported as short.
_SHORT_KEY = 32

log = logging.getLogger(__name__)


class EntryFormat:
    """Packs values into entries of a shared store, and checks what the store returns.

    A signed entry is an HMAC-SHA256 of its key, its expiry and its value, followed by the latter
    two. The key names the service and the version of its scores.

    Args:
        signing_key: Signs entries; others are then not accepted. None: entries are not signed.
    """

    def __init__(self, signing_key: bytes | None) -> None:
        self._signing_key = signing_key
        self._warning = RareWarning(log)

    def pack(self, key: str, value: bytes, expires_at: float) -> bytes:
        """Return the entry of a value.

        Args:
            key: The key it is stored under.
            value: The value.
            expires_at: When it expires, in seconds since the epoch; infinity for never.
        """
        content = _EXPIRES_AT.pack(expires_at) + value
        if self._signing_key is None:
            return _PLAIN + content
        return _SIGNED + _digest(self._signing_key, key, content) + content

    def unpack(self, key: str, entry: object) -> tuple[bytes, float] | None:
        """Return an entry's value and its remaining seconds; None if it is invalid or expired."""
        content = self._content(key, entry)
        if content is None:
            self._warning(
                "an entry of the cache is damaged, or not signed with this service's key; its "
                "score is computed again"
            )
            return None
        (expires_at,) = _EXPIRES_AT.unpack_from(content)
        seconds_left = expires_at - time.time()
        return (content[_EXPIRES_AT.size :], seconds_left) if seconds_left > 0 else None

    def _content(self, key: str, entry: object) -> bytes | None:
        """Return the expiry and the value of an entry, None if it is invalid."""
        if not isinstance(entry, bytes):
            return None
        kind, content = entry[:1], entry[1:]
        if self._signing_key is not None:
            digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            expected = _digest(self._signing_key, key, content)
            if not hmac.compare_digest(digest, expected):
                return None
        if kind != (_PLAIN if self._signing_key is None else _SIGNED):
            return None
        if len(content) <= _EXPIRES_AT.size or math.isnan(_EXPIRES_AT.unpack_from(content)[0]):
            return None
        return content


def _digest(signing_key: bytes, key: str, content: bytes) -> bytes:
    name = key.encode()
    message = _LENGTH.pack(len(name)) + name + content  # the length: where the key ends
    return hmac.digest(signing_key, message, hashlib.sha256)


def read_signing_key(path: Path, api_key_file: Path | None) -> bytes:
    """Return the key that signs entries: the content of a file, without white space around it.

    Args:
        path: The file.
        api_key_file: The file of the API keys, none of which may be the signing key.

    Raises:
        ValueError: The file is empty or cannot be read, or has an API key.
    """
    source = f"--cache-signing-key-file {path}"
    try:
        signing_key = path.read_bytes().strip()
        api_keys = _lines(api_key_file.read_bytes()) if api_key_file is not None else set()
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
    if not signing_key:
        raise ValueError(f"{source}: no key in it; `openssl rand -hex 32` makes one")
    if (_lines(signing_key) | {signing_key}) & api_keys:
        raise ValueError(f"{source}: an API key is in it, which callers know; use another key")
    if len(signing_key) < _SHORT_KEY:
        log.warning("%s: the key is short and may be guessed; use `openssl rand -hex 32`", source)
    return signing_key


def _lines(content: bytes) -> set[bytes]:
    stripped = (line.strip() for line in content.removeprefix(b"\xef\xbb\xbf").splitlines())
    return {line for line in stripped if line and not line.startswith(b"#")}
