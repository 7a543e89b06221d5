"""Entries of shared stores: a value with its expiry and a checksum, signed if there is a key."""

import hashlib
import hmac
import logging
import struct
import time
from collections.abc import Callable
from pathlib import Path

from rewardfleet_server.settings import read_keys
from rewardfleet_server.system.log_throttle import LogThrottle

#: The kinds of entries, which are their first byte: with a checksum, or signed.
_CHECKED, _SIGNED = b"c", b"s"
#: When an entry was stored, in seconds since the epoch, and its time to live in seconds.
_TIMES = struct.Struct("!dd")
_LENGTH = struct.Struct("!Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
#: Characters of a signing key below which it is reported as short.
_SHORT_KEY = 32

log = logging.getLogger(__name__)


class EntryFormat:
    """Packs values into entries of a shared store, and checks what the store returns.

    An entry is an HMAC-SHA256 of its key, its times and its value, followed by the latter two. The
    key of an entry names the service and the version of its scores. Without a signing key, the HMAC
    is a checksum: it notices damage, and entries that have changed places.

    Args:
        signing_key: Signs entries; others are then not accepted. None: entries are not signed.
        on_damage: Called for each entry that is not accepted.
    """

    def __init__(
        self, signing_key: bytes | None, on_damage: Callable[[], None] = lambda: None
    ) -> None:
        self._signing_key = signing_key or b""
        self._kind = _CHECKED if signing_key is None else _SIGNED
        self._on_damage = on_damage
        self._warning = LogThrottle(log)

    def pack(self, key: str, value: bytes, ttl_s: float) -> bytes:
        """Return the entry of a value, which lives for seconds; infinity for no limit."""
        content = _TIMES.pack(time.time(), ttl_s) + value
        return self._kind + _digest(self._signing_key, key, content) + content

    def unpack(self, key: str, entry: object) -> tuple[bytes, float] | None:
        """Return an entry's value and its remaining seconds; None if it is invalid or expired."""
        content = b""
        if isinstance(entry, bytes) and entry[:1] == self._kind:
            digest, content = entry[1 : 1 + _DIGEST_BYTES], entry[1 + _DIGEST_BYTES :]
            if not hmac.compare_digest(digest, _digest(self._signing_key, key, content)):
                content = b""
        if len(content) <= _TIMES.size:
            self._on_damage()
            self._warning(
                "an entry of the cache is damaged, or not signed with this service's key; its "
                "score is computed again"
            )
            return None
        stored_at, ttl_s = _TIMES.unpack_from(content)
        age_s = time.time() - stored_at
        # Below 0, clocks differ or were set back. An entry never lives longer than twice its time.
        if not -ttl_s <= age_s < ttl_s:
            return None
        return content[_TIMES.size :], ttl_s - max(age_s, 0.0)


def _digest(signing_key: bytes, key: str, content: bytes) -> bytes:
    name = key.encode()
    message = _LENGTH.pack(len(name)) + name + content  # the length: where the key ends
    return hmac.digest(signing_key, message, hashlib.sha256)


def read_signing_key(path: Path, api_key_file: Path | None) -> bytes:
    """Return the key that signs entries: the content of a file, without white space around it.

    Args:
        api_key_file: The file of the API keys, none of which may be the signing key.

    Raises:
        ValueError: The file is empty or cannot be read, or has an API key.
    """
    source = f"cache_signing_key_file {path}"
    try:
        signing_key = path.read_bytes().strip()
        api_keys = [] if api_key_file is None else read_keys(api_key_file, "--api-key-file")
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
    if not signing_key:
        raise ValueError(f"{source}: no key in it; `openssl rand -hex 32` makes one")
    lines = {signing_key, *map(bytes.strip, signing_key.splitlines())}
    if not lines.isdisjoint(key.encode() for key in api_keys):
        raise ValueError(f"{source}: an API key is in it, which callers know; use another key")
    if len(signing_key) < _SHORT_KEY:
        log.warning("%s: the key is short and may be guessed; use `openssl rand -hex 32`", source)
    return signing_key


def source_version(folder: Path) -> str:
    """Return a digest of the source code in a folder, on which stored scores depend."""
    digest = hashlib.sha256()
    for file in sorted(each for kind in ("py", "h", "ini") for each in folder.rglob(f"*.{kind}")):
        digest.update(f"{file.relative_to(folder)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
