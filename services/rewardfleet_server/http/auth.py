"""API keys: several at once, compared in constant time, read again when their file changes."""

import hashlib
import hmac
import logging
import time
from pathlib import Path

from rewardfleet.wire.errors import Unauthorized

log = logging.getLogger(__name__)

#: Seconds between two looks at the key file.
_RELOAD_SECONDS = 1.0


class ApiKeys:
    """The API keys that a service accepts.

    Args:
        path: A file with one key per line; empty lines and lines that start with `#` are ignored.
            None: no key is required.

    Raises:
        ValueError: The file contains no key.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._digests: list[bytes] = []
        self._version: tuple[int, int, int] | None = None
        self._checked_at = time.monotonic()
        if path is not None:
            self._load(path)

    def check(self, authorization: str | None) -> None:
        """Check the value of an `Authorization` header.

        Raises:
            Unauthorized: It contains no key, or one that is not accepted.
        """
        if self._path is None:
            return
        self._reload(self._path)
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized("this service requires an API key: `Authorization: Bearer <key>`")
        digest = _digest(key.strip(" \t").encode("latin-1"))
        # Compared with all keys, so that the time taken does not tell which one came close.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("the API key in `Authorization: Bearer` is not accepted")

    def _reload(self, path: Path) -> None:
        """Read the file again if it has changed. An invalid file leaves the keys unchanged."""
        now = time.monotonic()
        if now - self._checked_at < _RELOAD_SECONDS:
            return
        self._checked_at = now
        try:
            if _version_of(path) != self._version:
                self._load(path)
                log.info("the key file was read again, keys: %d", len(self._digests))
        except (OSError, ValueError) as error:
            log.error("the key file cannot be used, the previous keys stay valid: %s", error)  # noqa: TRY400 - the traceback would show the path only

    def _load(self, path: Path) -> None:
        version = _version_of(path)
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        except UnicodeDecodeError:
            raise ValueError(f"--api-key-file {path}: not a text file") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise ValueError(f"--api-key-file {path}: a key is not plain ASCII")
        digests = [_digest(key.encode()) for key in keys]
        if not digests:
            raise ValueError(f"--api-key-file {path}: no key in it; write one key per line")
        self._digests, self._version = digests, version


def _version_of(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _digest(key: bytes) -> bytes:
    # Of equal length, which compare_digest needs to hide the length of the keys.
    return hashlib.sha256(key).digest()
