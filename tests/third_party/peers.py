"""Trainers at a commit, which `make install-peers` fetches, or recorded exchanges with them.

`make record-peers` writes the recordings: what a trainer's own code sent to a service or an
adapter, what it got, and what it made of that. Where the source is missing, each recorded call is
made again, and must have the same result.
"""

import contextlib
import functools
import http.server
import inspect
import json
import os
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from .exchange import Recorder, Wire, comparable, from_json
from .trainers import HAS_CLIENTS, HERE, PEERS, called, run

SOURCES = tomllib.loads((HERE / "sources.toml").read_text())

#: Adapters, made from the address of a service and one that refuses connections.
Adapters = Mapping[str, Callable[[str, str], Any]]

#: Of calls to a service that is down, which are repeated until then.
TIMEOUT = {"timeout_s": 3}


class Peer:
    """What a function that runs a trainer gets."""

    def __init__(self, adapters: Adapters, url: str, direct_url: str, down_url: str) -> None:
        #: A service. Requests to the first address are recorded, those to the second are not.
        self.url, self.direct_url = url, direct_url
        self.down_url = down_url  #: an address that refuses connections
        self.calls: list[dict[str, Any]] = []  #: the recorded calls of adapters
        self._adapters = adapters

    def adapter(self, name: str) -> Recorder:
        return Recorder(self._adapters[name](self.direct_url, self.down_url), name, self.calls)

    def remote(self, name: str, actor: Any, method: str) -> Any:
        """Return an adapter that is an actor of Ray, with one method, whose calls are recorded."""
        import ray

        def call(*given: Any) -> Any:
            reference = getattr(actor, method).remote(*given)
            recorder = Recorder(None, name, self.calls)
            with contextlib.suppress(Exception):  # the trainer gets it as well
                recorder.recorded(lambda *_: ray.get(reference), method)(*given)
            return reference

        return SimpleNamespace(**{method: SimpleNamespace(remote=call)})


def recorded(name: str, adapters: Adapters | None = None) -> Callable[..., Any]:
    """Run a function with the source of a trainer in sources.toml, or make its calls again."""
    made: Adapters = {"wire": lambda url, _: Wire(url), **(adapters or {})}
    path = HERE / "recorded" / f"{name}.json"
    commit = SOURCES[name]["commit"]

    def decorator(function: Callable[[Peer], Any]) -> Callable[..., Any]:
        def driven(*urls: str) -> dict[str, Any]:
            peer = Peer(made, *urls)
            return {"took": called(function, peer), "calls": peer.calls}

        @functools.wraps(function)
        async def call(url: str = "", down_url: str = "") -> Any:
            if HAS_CLIENTS and (source := PEERS / name).exists():
                folders = [source, *(source / each for each in SOURCES[name].get("paths", []))]
                with listening(url) as (proxy, calls):
                    found = run(function, [proxy, url, down_url], *folders)
                # Equal requests are there once.
                requests = {comparable(each): each for each in calls}
                found["calls"] += [requests[each] for each in sorted(requests)]
                if os.environ.get("RECORD"):
                    write(name, {"commit": commit, **found})
            else:
                found = json.loads(path.read_text())
                assert found["commit"] == commit, "run make record-peers"
                await replay(found["calls"], made, url, down_url)
            return found["took"]

        call.__wrapped__ = driven
        return call

    return decorator


def write(name: str, recording: dict[str, Any]) -> None:
    """Write each call into a line of its own, so that changes are readable."""
    calls = recording.pop("calls")
    for call in calls:
        call |= {
            key: json.loads(comparable(call[key])) for key in ("result", "after") if key in call
        }
    lines = ",\n".join(json.dumps(each, sort_keys=True, separators=(",", ":")) for each in calls)
    path = HERE / "recorded" / f"{name}.json"
    path.write_text(f'{json.dumps(recording)[:-1]}, "calls": [\n{lines}]}}\n')


async def replay(calls: list[dict[str, Any]], adapters: Adapters, url: str, down_url: str) -> None:
    """Make recorded calls again, and compare their results."""
    again = Peer(adapters, "", url, down_url)
    made = {name: again.adapter(name) for name in {each["adapter"]: None for each in calls}}
    for call in calls:
        given, fields = from_json(call["given"])
        recorder = made[call["adapter"]]
        method = recorder if call["method"] == "__call__" else getattr(recorder, call["method"])
        with contextlib.suppress(Exception):  # it is recorded
            result = method(*given, **fields)
            if inspect.isawaitable(result):
                await result
    assert [*map(comparable, again.calls)] == [*map(comparable, calls)]


@contextmanager
def listening(url: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Pass requests on to a service, unchanged, and record them. It is an HTTP proxy as well."""
    calls: list[dict[str, Any]] = []
    wire = Recorder(Wire(url), "wire", calls)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            kept = {"content-type", "accept", "authorization"}
            headers = {k.lower(): v for k, v in self.headers.items() if k.lower() in kept}
            status, answer = wire.post(urlsplit(self.path).path, headers, body)
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
        try:
            yield f"http://127.0.0.1:{server.server_port}", calls
        finally:
            server.shutdown()
            thread.join()
