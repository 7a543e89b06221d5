#!/usr/bin/env bash
# Version: httpx 0.28.1, httpcore 1.0.9, anyio 4.16.0.
# Guess: whatever fails between httpx and a server is an httpx.HTTPError, in both of its clients.
# Seen: since TLS 1.3, a server that wants another client certificate says so in place of its
# answer. httpx.Client raises httpx.ReadError, httpx.AsyncClient a bare ssl.SSLError: httpcore maps
# it when the connection begins, and not when it is read.
# Why it matters: code that catches httpx.HTTPError to retry a reward, or to count it as missing,
# ends with an error that it does not know.
# Instead: catch ssl.SSLError as well.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'httpx==0.28.1' 'httpcore==1.0.9' 'anyio==4.16.0' 'trustme==1.2.1'

venv/bin/python - <<'PYTHON'
import asyncio
import socket
import ssl
import threading

import httpx
import trustme

authority = trustme.CA()
server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
authority.issue_cert("127.0.0.1").configure_cert(server_side)
server_side.verify_mode = ssl.CERT_REQUIRED
authority.configure_trust(server_side)
trusted = ssl.create_default_context()
authority.configure_trust(trusted)
listening = socket.create_server(("127.0.0.1", 0))


def serve():
    while True:
        connection, _ = listening.accept()
        tls = server_side.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        try:
            tls.do_handshake()
        except ssl.SSLError:  # it has been told to the client
            tls.shutdown(socket.SHUT_WR)
            while tls.recv(65536):
                pass


threading.Thread(target=serve, daemon=True).start()
url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
options = {"verify": trusted, "trust_env": False}


async def ask():
    async with httpx.AsyncClient(**options) as client:
        await client.get(url)


def error_of(call):
    try:
        call()
    except Exception as error:
        return error


with httpx.Client(**options) as client:
    blocking = error_of(lambda: client.get(url))
asynchronous = error_of(lambda: asyncio.run(ask()))
print("httpx.Client:", repr(blocking))
print("httpx.AsyncClient:", repr(asynchronous))

assert isinstance(blocking, httpx.ReadError)
assert isinstance(asynchronous, ssl.SSLError), "it is wrapped now"
PYTHON
