"""URLs and hosts, as callers and operators write them."""

import ipaddress
import re
from urllib.parse import urlsplit

#: A user and a password: all up to the last `@`, as a password may have any character. Only after a
#: host name with a dot and without a port, an `@` is part of a path: what looks like a port may be
#: the beginning of a password.
_USER = re.compile(r"//(?![\w-]+(?:\.[\w-]+)+[/?#]).*@")
_QUERY = re.compile(r"[?#].*")


def redact(url: str) -> str:
    """Return a URL without its user, password, query and fragment, for messages and logs."""
    return _QUERY.sub("?***", _USER.sub("//***@", url))


def is_loopback(address: str) -> bool:
    """Return whether a host, or that of a URL, is an address of this machine's own."""
    try:
        host = urlsplit(address).hostname if "://" in address else address
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:  # another host name may resolve to anything
        return False


def is_base_url(url: str) -> bool:
    """Return whether a text is an HTTP URL without a query or a fragment."""
    try:
        parts = urlsplit(url)
        has_host = bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # an invalid port or name, or a bracket without its pair
        return False
    is_plain = url.isprintable() and not (parts.query or parts.fragment)
    return parts.scheme in {"http", "https"} and has_host and is_plain
