"""Trainers at a commit, which `make install-peers` fetches, or recorded exchanges with them.

`make record-peers` writes the recordings: what a trainer's own code sent to a service or an
adapter, what it got, and what it made of that. Where the source is missing, each recorded call is
made again, and must have the same result.
"""

import contextlib
import http.server
import importlib.util
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .drive import ADAPTERS
from .exchange import Recorder, comparable, from_json

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCES = tomllib.loads((HERE / "sources.toml").read_text())


async def took(name: str, url: str) -> dict[str, Any]:
    """Return what a trainer makes of the rewards of a service, and of one that is down.

    Args:
        name: The trainer, in sources.toml and drive.py.
        url: The service.
    """
    path = HERE / "recorded" / f"{name}.json"
    source = ROOT / ".peers" / name
    with refusing() as down:
        # Its libraries are in the environment of `make test-trainers`.
        if source.exists() and importlib.util.find_spec("ray"):
            found = run(name, url, down)
            if os.environ.get("RECORD"):
                write(path, {"commit": SOURCES[name]["commit"], **found})
        else:
            found = json.loads(path.read_text())
            assert found["commit"] == SOURCES[name]["commit"], "run make record-peers"
            await replay(found["calls"], url, down)
    return found["took"]


def write(path: Path, recording: dict[str, Any]) -> None:
    """Write each call into a line of its own, so that changes are readable."""
    calls = recording.pop("calls")
    for call in calls:
        call |= {
            key: json.loads(comparable(call[key])) for key in ("result", "after") if key in call
        }
    lines = ",\n".join(json.dumps(each, sort_keys=True, separators=(",", ":")) for each in calls)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{json.dumps(recording)[:-1]}, "calls": [\n{lines}]}}\n')


def run(name: str, url: str, down: str) -> dict[str, Any]:
    """Run a trainer's code in a process of its own: its packages may have names of installed ones.

    Returns:
        `took`, and the `calls` of adapters and routes. Equal requests are there once.
    """
    calls: list[dict[str, Any]] = []
    paths = [str(ROOT / ".peers" / name), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "CUDA_VISIBLE_DEVICES": ""}
    with listening(url, calls) as proxy:
        command = [sys.executable, "-m", "third_party.drive", name, proxy, url, down]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            cwd=HERE.parent,
            env=environment,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    requests = {comparable(each): each for each in calls}
    found["calls"] += [requests[each] for each in sorted(requests)]
    return found


async def replay(calls: list[dict[str, Any]], url: str, down: str) -> None:
    """Make recorded calls again, and compare their results."""
    adapters = {each["adapter"]: None for each in calls}
    adapters = {name: ADAPTERS[name](url, down) for name in adapters}
    again: list[dict[str, Any]] = []

    for call in calls:
        given, fields = from_json(call["given"])
        recorder = Recorder(adapters[call["adapter"]], call["adapter"], again)
        method = recorder if call["method"] == "__call__" else getattr(recorder, call["method"])
        with contextlib.suppress(Exception):  # it is recorded
            result = method(*given, **fields)
            if inspect.isawaitable(result):
                await result
    assert [*map(comparable, again)] == [*map(comparable, calls)]


@contextmanager
def refusing() -> Iterator[str]:
    """Return an address that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def listening(url: str, calls: list[dict[str, Any]]) -> Iterator[str]:
    """Return an address that passes requests on to a service, unchanged, and records them."""
    wire = Recorder(ADAPTERS["wire"](url, url), "wire", calls)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            kept = {"content-type", "accept", "authorization"}
            headers = {k.lower(): v for k, v in self.headers.items() if k.lower() in kept}
            status, answer = wire.post(self.path, headers, body)
            sent = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
