"""The names under which a server may be addressed, against DNS rebinding.

A web page can make its own name resolve to a loopback or private address, and the browser then
sends its requests, and shows it the responses, as those of its own origin. The page's name is in
the `Host` header. A header with an IP address cannot come from such a page.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

from rewardfleet.wire.errors import Forbidden
from rewardfleet.wire.urls import is_loopback

#: Headers of which it is remembered whether they are accepted: most requests have the same one.
_MAX_REMEMBERED = 64


class AllowedHosts:
    """The accepted values of `Host`: loopback names, and those that are given.

    If the server listens beyond loopback, also any IP address, so that probes keep working.

    Args:
        names: Further names or addresses, without ports; `*` accepts any.
        has_keys: Whether callers need an API key. A web page has none, so without `names` any
            `Host` is accepted.
    """

    def __init__(self, names: Sequence[str], *, listens_on: str, has_keys: bool) -> None:
        self._accepts_any = "*" in names or (has_keys and not names)
        self._accepts_addresses = not is_loopback(listens_on)
        self._names = {_normalized(name) for name in (*names, listens_on)}
        self._accepts = lru_cache(_MAX_REMEMBERED)(self._is_accepted)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise Forbidden if the headers of a request, in lower case, have no accepted `Host`."""
        if self._accepts_any:
            return
        given = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(given) != 1 or not self._accepts(given[0]):
            shown = ", ".join(given)[:100]
            raise Forbidden(f"the host {shown!r} is not accepted; allow it with allowed_host")

    def _is_accepted(self, header: str) -> bool:
        name, colon, port = header.rpartition(":")
        has_port = colon and (port.isdigit() or not port) and not name.endswith(":")
        host = _normalized(name if has_port else header)
        if host in self._names or is_loopback(host):
            return True
        with suppress(ValueError):
            return self._accepts_addresses and bool(ipaddress.ip_address(host))
        return False


def _normalized(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host.lower().removesuffix(".")
