"""The address of a server, and what waits at a socket."""

import select
import socket

#: In the message of a server whose port another process has.
CANNOT_BE_BOUND = "cannot be bound"


def bind(host: str, port: int) -> socket.socket:
    """Bind the address of a server; ValueError if that is not possible.

    No connection is accepted until the server listens.
    """
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ValueError(f"--host {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(resolved)
        # From now on, other processes cannot bind this address either.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"--port {port}: {host} {CANNOT_BE_BOUND}: {error.strerror}; choose another port, or 0 "
            "for a free one"
        ) from error
    return listener


def has_input(*channels: socket.socket) -> bool:
    """Return whether a connection, a message or the end of the other side waits at a socket."""
    poll = select.poll()
    for each in channels:
        poll.register(each, select.POLLIN)
    return bool(poll.poll(0))


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a bound address."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
