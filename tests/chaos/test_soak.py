"""All services under load for a while: memory, descriptors and event loops stay as they were."""

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from ..server.processes import memory_of
from .figures import Figures
from .fleet import fleet_up, replicas_of

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
    with fleet_up(tmp_path, _CONFIG) as (url, pids):
        watched = _services(pids())
        addresses = [urlsplit(each["url"]).netloc for each in replicas_of(url)]
        with Lag(addresses) as idle:
            time.sleep(3)
        _load(url, _WARM_UP_SECONDS * min(factor, 6))
        time.sleep(1)
        before = {name: _descriptors(pid) for name, pid in watched.items()}
        with Sampler(watched) as sampler, Lag(addresses) as busy:
            result = _load(url, _SOAK_SECONDS * factor)
        time.sleep(1)
        after = {name: _descriptors(pid) for name, pid in watched.items()}
        jails = memory_of(watched["code"]) / _MIB
    total = result["services"]["all"]
    figures.made, figures.right = total["due"], total["scored"] + total["abstained"]
    figures.wrong = ["wrong score"] * total["errors"].pop("wrong score", 0)
    figures.notes["p99 of requests"] = f"{total['latency_s']['p99']:.3f} s"
    growth = {name: sampler.growth(name) / _MIB for name in watched}
    last = {name: sampler.last(name) / _MIB for name in watched}
    opened = {name: (after[name] - before[name]).total() for name in watched}
    figures.notes["RSS in MiB"] = ", ".join(
        f"{name} {last[name]:.0f} ({growth[name]:+.1f})" for name in watched
    )
    figures.notes["code with its jails"] = f"{jails:.0f} MiB"
    figures.notes["new descriptors"] = ", ".join(f"{name} {opened[name]}" for name in watched)
    for name, lag in (("idle", idle), ("busy", busy)):
        figures.notes[f"event loop {name}"] = f"p95 {lag.p95:.4f} max {max(lag.seconds):.4f} s"
    figures.assert_all_right()
    # The gateway keeps idle connections for the next burst; each is two sockets.
    most_sockets = 2 * result["most_in_flight"] + 20
    for name in watched:
        assert growth[name] < 12 + 0.1 * last[name], figures.text()
        new = after[name] - before[name]
        assert new["other"] <= 8 and new["socket"] <= most_sockets, (name, new)
    assert jails < last["code"] + 100
    assert busy.p95 < 20 * idle.p95 + 0.5


def _load(url: str, seconds: int) -> dict:
    """Put load on a fleet; every request must be answered."""
    command = [sys.executable, "-m", "rewardfleet_server", "load", url, "--json"]
    command += ["--rate", str(_RATE), "--duration-s", str(seconds), "--max-errors", "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds + 120, check=False)
    return json.loads(done.stdout)


def _services(pids: list[int]) -> dict[str, int]:
    """Return the processes of a fleet by name: the gateway, and the services."""
    gateway = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    found = {"gateway": gateway}
    for pid in pids:
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


class Background(ABC):
    """Runs in a thread until the block ends."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_end` is set."""


class Sampler(Background):
    """Measures the memory of processes, without that of what they started, once per second."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._samples: dict[str, list[int]] = {name: [] for name in pids}
        super().__init__()

    def _run(self) -> None:
        while not self._end.wait(1):
            for name, pid in self._pids.items():
                self._samples[name].append(_rss(pid))

    def growth(self, name: str) -> float:
        """Return the median of the last third minus that of the first third, in bytes."""
        samples = self._samples[name]
        third = len(samples) // 3
        return statistics.median(samples[-third:]) - statistics.median(samples[:third])

    def last(self, name: str) -> float:
        """Return the median of the last third in bytes."""
        samples = self._samples[name]
        return statistics.median(samples[-(len(samples) // 3) :])


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


class Lag(Background):
    """Asks all services for `/healthz` again and again: it needs nothing but their event loop.

    Attributes:
        seconds: The time of each answer.
    """

    def __init__(self, addresses: list[str]) -> None:
        self.seconds: list[float] = []
        self._addresses = addresses
        super().__init__()

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20)[-1]

    def _run(self) -> None:
        connections = [http.client.HTTPConnection(each, timeout=60) for each in self._addresses]
        while not self._end.wait(0.02):
            for connection in connections:
                began = time.monotonic()
                connection.request("GET", "/healthz")
                assert connection.getresponse().read()
                self.seconds.append(time.monotonic() - began)
        for connection in connections:
            connection.close()
