"""How all clients connect: which servers they trust, what they show them, and by which proxy."""

import re
import ssl
from collections.abc import Iterable
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

#: What to do about a certificate, by OpenSSL's number of what is wrong with it; else, replace it.
_REMEDIES = dict.fromkeys((62, 64), "use a host name that it has") | dict.fromkeys(
    (2, 18, 19, 20, 21), "name its authority's file in SSL_CERT_FILE, or as verify= of the client"
)


@cache
def tls_context(verify: str | None = None, cert: str | None = None) -> ssl.SSLContext:
    """Return what is trusted and shown, or raise `ValueError`. Files are read once, in 30 ms."""
    try:
        if verify:
            context = ssl.create_default_context(cafile=verify)
        else:
            context = httpx.create_ssl_context(trust_env=False)  # with what certifi has
            context.set_default_verify_paths()
        if cert:
            context.load_cert_chain(cert, password="")  # else OpenSSL would ask, and wait
    except OSError as error:  # it does not name the file
        raise ValueError(f"{verify=}, {cert=}: {error}") from None
    return context


def connections(
    pem: Iterable[str | None], trust_env: bool, url: str, most: int
) -> httpx.AsyncHTTPTransport:
    """Return connections to a URL, at most so many; `pem` are the files of `tls_context`."""
    parts = urlsplit(url)
    is_direct = not trust_env or proxy_bypass(parts.netloc.rpartition("@")[2])
    proxies = {} if is_direct else getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return httpx.AsyncHTTPTransport(
        verify=tls_context(*pem),
        limits=httpx.Limits(max_connections=most),
        proxy=proxy if not proxy or "://" in proxy else f"http://{proxy}",
    )


def certificate_problem(error: BaseException | None) -> str:
    """Return what is wrong with a certificate, and what to do; "" if an error has other causes."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = _REMEDIES.get(error.verify_code, "replace it")
            return f"its certificate is refused ({error.verify_message.rstrip('.')}): {remedy}"
        reason = getattr(error, "reason", None) or ""  # of a server, during the handshake
        if isinstance(error, ssl.SSLError) and re.search("ALERT_.*(CERT|UNKNOWN_CA|HAND)", reason):
            return f"it wants another client certificate ({reason}): give cert= to the client"
        error = error.__cause__ or error.__context__
    return ""
