"""Requests as bytes on connections of their own."""

import http.client
import socket
from contextlib import suppress
from urllib.parse import urlsplit


def connect_to(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=15)


def head(length: int | None, *headers: str, path: str = "/score") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ["Host: localhost", "Content-Type: application/json", size, *headers]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def response(connection: socket.socket) -> tuple[int, bytes]:
    """Read one response; return its status and body."""
    with http.client.HTTPResponse(connection) as answer:
        answer.begin()
        return answer.status, answer.read()


def has_ended(connection: socket.socket) -> bool:
    """Wait until the service closes a connection; return False if it does not in time."""
    with suppress(ConnectionError):
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            return False
    return True
