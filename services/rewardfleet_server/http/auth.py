"""API keys: several at once, compared in constant time, read again when their file changes."""

import base64
import hashlib
import hmac
import logging
import time
from contextlib import suppress
from pathlib import Path

from rewardfleet.wire.errors import Unauthorized
from rewardfleet_server.settings import read_keys
from rewardfleet_server.system.log_throttle import LogThrottle

log = logging.getLogger(__name__)

#: Seconds between two reads of the key file.
_RELOAD_SECONDS = 1.0


class ApiKeys:
    """The API keys that a service accepts, those in a file; without one, no key is required.

    While the file has no key or cannot be read, no key is accepted. Messages name its setting.
    Raises ValueError if it contains no key at first, OSError if it cannot be read.
    """

    def __init__(self, path: Path | None, flag: str = "--api-key-file") -> None:
        self._path, self._flag = path, flag
        self._digests = [] if path is None else self._read(path)
        self._read_at = time.monotonic()
        self._warning = LogThrottle(log)

    def shares_a_key_with(self, other: "ApiKeys") -> bool:
        """Return whether both accept one key."""
        return bool({*self._digests} & {*other._digests})  # noqa: SLF001 - of the same class

    def check(self, authorization: str | None) -> None:
        """Check the value of an `Authorization` header: a bearer token, or a basic password.

        Raises:
            Unauthorized: It contains no key, or one that is not accepted.
        """
        if self._path is None:
            return
        self._reload(self._path)
        try:
            self._check(authorization)
        except Unauthorized as error:
            # A trainer may go on without these rewards, and nothing else would show it.
            self._warning("REQUESTS ARE REFUSED (401, %s): %s", self._flag, error.detail)
            raise

    def _check(self, authorization: str | None) -> None:
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() == "basic":  # of trainers that take a URL only: http://any:KEY@host
            scheme, key = "bearer", _password(key)
        if scheme.lower() != "bearer":
            raise Unauthorized("this service requires an API key: `Authorization: Bearer <key>`")
        digest = _digest(key.strip(" \t").encode("latin-1"))
        # Compared with all keys, so that the time taken does not tell which one came close.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("the API key in `Authorization: Bearer` is not accepted")

    def _reload(self, path: Path) -> None:
        """Read the file again. All of it is read: a new file may have the same size and time.

        If it is invalid, no key is accepted: whoever empties or deletes it revokes the keys.
        """
        now = time.monotonic()
        if now - self._read_at < _RELOAD_SECONDS:
            return
        self._read_at, before = now, self._digests
        try:
            self._digests = self._read(path)
        except (OSError, ValueError) as error:
            self._digests = []
            if before:
                log.error("no API key is accepted: %s", error)  # noqa: TRY400 - the traceback would show the path only
        else:
            if self._digests != before:
                log.info("the key file was read again, keys: %d", len(self._digests))

    def _read(self, path: Path) -> list[bytes]:
        return [_digest(key.encode()) for key in read_keys(path, self._flag)]


def _password(credentials: str) -> str:
    """Return the password in the credentials of HTTP's basic authentication; "" without one."""
    with suppress(ValueError):
        decoded = base64.b64decode(credentials.strip(" \t"), validate=True)
        return decoded.decode("latin-1").partition(":")[2]
    return ""


def _digest(key: bytes) -> bytes:
    # Of equal length, which compare_digest needs to hide the length of the keys.
    return hashlib.sha256(key).digest()
