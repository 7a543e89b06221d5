"""All services under load for a while: memory, descriptors and event loops stay as they were."""

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from ..server.processes import memory_of
from .figures import Figures
from .fleet import Fleet, fleet_up

_RATE, _WARM_UP_SECONDS, _SOAK_SECONDS = 40, 10, 30
_MIB = 2**20

_CONFIG = "".join(
    f"[{name}]\nport = 0\n{extra}"
    for name, extra in {
        # Small caches and logs, so that growth is not theirs.
        "video": "cache_mb = 1\n",
        "code": "cache_mb = 1\nworkers = 2\n",
        "episode": "",
        "tools": "replicas = 2\n",
    }.items()
)


def test_memory_descriptors_and_event_loops_stay_as_they_were(
    tmp_path: Path, figures: Figures, factor: int
):
    with fleet_up(tmp_path, _CONFIG) as fleet:
        watched = _services(fleet)
        addresses = [urlsplit(each["url"]).netloc for each in fleet.replicas()]
        with _lag(addresses) as idle:
            time.sleep(3)
        _load(fleet.url, _WARM_UP_SECONDS * min(factor, 6))
        time.sleep(1)
        before = {name: _descriptors(pid) for name, pid in watched.items()}
        samples: dict[str, list[float]] = {name: [] for name in watched}

        def sample() -> None:
            for name, pid in watched.items():
                samples[name].append(_rss_mib(pid))

        with repeated(1, sample), _lag(addresses) as busy:
            result = _load(fleet.url, _SOAK_SECONDS * factor)
        time.sleep(1)
        after = {name: _descriptors(pid) for name, pid in watched.items()}
        jails = memory_of(watched["code"]) / _MIB
    total = result["services"]["all"]
    figures.made, figures.right = total["due"], total["scored"] + total["abstained"]
    figures.wrong = ["wrong score"] * total["errors"].pop("wrong score", 0)
    figures.notes["p99 of requests"] = f"{total['latency_s']['p99']:.3f} s"
    third = len(samples["gateway"]) // 3
    last = {name: statistics.median(each[-third:]) for name, each in samples.items()}
    growth = {name: last[name] - statistics.median(samples[name][:third]) for name in watched}
    opened = {name: (after[name] - before[name]).total() for name in watched}
    figures.notes["RSS in MiB"] = ", ".join(
        f"{name} {last[name]:.0f} ({growth[name]:+.1f})" for name in watched
    )
    figures.notes["code with its jails"] = f"{jails:.0f} MiB"
    figures.notes["new descriptors"] = ", ".join(f"{name} {opened[name]}" for name in watched)
    p95 = {}
    for name, seconds in (("idle", idle), ("busy", busy)):
        p95[name] = statistics.quantiles(seconds, n=20)[-1]
        figures.notes[f"event loop {name}"] = f"p95 {p95[name]:.4f} max {max(seconds):.4f} s"
    figures.assert_all_right()
    # The gateway keeps idle connections for the next burst; each is two sockets.
    most_sockets = 2 * result["most_in_flight"] + 20
    for name in watched:
        assert growth[name] < 12 + 0.1 * last[name], figures.text()
        new = after[name] - before[name]
        assert new["other"] <= 8 and new["socket"] <= most_sockets, (name, new)
    assert jails < last["code"] + 100
    assert p95["busy"] < 20 * p95["idle"] + 0.5


def _load(url: str, seconds: int) -> dict:
    """Put load on a fleet; every request must be answered."""
    command = [sys.executable, "-m", "rewardfleet_server", "load", url, "--json"]
    command += ["--rate", str(_RATE), "--duration-s", str(seconds), "--max-errors", "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds + 120, check=False)
    return json.loads(done.stdout)


def _services(fleet: Fleet) -> dict[str, int]:
    """Return the processes of a fleet by name: the gateway, and the services."""
    found = {"gateway": fleet.pid}
    for pid in fleet.services():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        name = words[words.index("serve") + 1]
        found[f"{name}-2" if name in found else name] = pid
    return found


def _descriptors(pid: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            kinds["socket" if os.readlink(each).startswith("socket:") else "other"] += 1
    return kinds


def _rss_mib(pid: int) -> float:
    """Return the memory of a process, without that of what it has started."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def repeated(seconds: float, work: Callable[[], None]) -> Iterator[None]:
    """Work in a thread at this interval, until the block ends."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(seconds):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextmanager
def _lag(addresses: list[str]) -> Iterator[list[float]]:
    """Ask all services for `/healthz` again and again: it needs nothing but their event loop.

    Yields the seconds of each answer.
    """
    seconds: list[float] = []
    connections = [http.client.HTTPConnection(each, timeout=60) for each in addresses]

    def ask() -> None:
        for connection in connections:
            began = time.monotonic()
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
            seconds.append(time.monotonic() - began)

    with repeated(0.02, ask):
        yield seconds
    for connection in connections:
        connection.close()
