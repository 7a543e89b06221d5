"""Bearer keys: several at once, compared in constant time, read again when their file changes."""

import hashlib
import hmac
import logging
import time
from pathlib import Path

from rewardfleet.wire.errors import Unauthorized

log = logging.getLogger(__name__)

#: How often, in seconds, the key file is looked at.
_RELOAD_SECONDS = 1.0


class ApiKeys:
    """The keys that open the service.

    Args:
        path: A file with one key a line; empty lines and lines that begin with `#` are passed
            over. None means that no key is asked for.

    Raises:
        ValueError: The file holds no key.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._digests: list[bytes] = []
        self._version: tuple[int, int, int] | None = None
        self._looked_at = time.monotonic()
        if path is not None:
            self._load(path)

    def check(self, authorization: str | None) -> None:
        """Let the caller pass or refuse him.

        Raises:
            Unauthorized: No key was sent, or none that is known.
        """
        if self._path is None:
            return
        self._reload(self._path)
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized("this service asks for a key: send `Authorization: Bearer <key>`")
        digest = _digest(key.strip(" \t").encode("latin-1"))
        # All are compared, so that the time taken does not tell which one came close.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("the key sent with `Authorization: Bearer` is not known here")

    def _reload(self, path: Path) -> None:
        """Read the file again if it has changed; a broken file leaves the keys as they were."""
        now = time.monotonic()
        if now - self._looked_at < _RELOAD_SECONDS:
            return
        self._looked_at = now
        try:
            if _version_of(path) != self._version:
                self._load(path)
                log.info("key file was read again, keys: %d", len(self._digests))
        except (OSError, ValueError) as error:
            log.error("key file cannot be used, the keys read before stay valid: %s", error)  # noqa: TRY400 - the traceback would show the path only

    def _load(self, path: Path) -> None:
        version = _version_of(path)
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise ValueError(f"a key in {path} is not plain ASCII, which a header needs")
        digests = [_digest(key.encode()) for key in keys]
        if not digests:
            raise ValueError(f"no key in {path}: write one key a line")
        self._digests, self._version = digests, version


def _version_of(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _digest(key: bytes) -> bytes:
    # Of equal length, as compare_digest needs to hide how long the known keys are.
    return hashlib.sha256(key).digest()
