"""`make bench-growth`: whether the CPU time of a score grows with callers, replicas and batches.

Every score is computed, of an item that equals no other one, except where the name says `cached`.
The CPU time is that of all processes of the services and of the gateway, without the caller's.
Items are small, as it is the work around a score that can grow. What is compared takes turns, on
connections that stay open. The memory of an idle connection and of a request that waits is measured
as well. Loopback only. Exits with 1 if a ratio misses its limit.

`python tests/bench/growth.py tools memory` measures parts of it. What was measured last of each
service is kept in `docs/benchmarks/growth.json`, which the plot shows.
"""

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from harness import (
    Connection,
    Ratio,
    Server,
    before,
    cpu_seconds,
    post,
    program_serving,
    resident_mib,
    run,
    send,
    serving,
)
from items import ROOT, Item, printing, raw_frames, stdio, tool_answer

from rewardfleet.wire.episode import MAX_EPISODES
from rewardfleet.wire.score import MAX_BATCH_ITEMS
from rewardfleet.wire.video import VideoRequest
from rewardfleet_server.serve import raise_descriptor_limit
from rewardfleet_server.testing import FakeJudge

mpl.use("Agg")
from matplotlib import pyplot as plt

from videos import encode

CALLERS, REPLICAS, BATCHES = (1, 8, 64, 512), (1, 2, 4, 8), (1, 16, 256, 4096)
#: Callers of replicas, and of batches: 512 items at once, which the code and video services take.
REPLICA_CALLERS, BATCH_CALLERS = 64, 2
#: What a limit compares is measured in all rounds, anything else in each fourth one.
ROUNDS, SECONDS = 12, 0.4
#: The programs whose verdicts are cached: so many that no two callers send the same one at once.
PROGRAMS = 1024
#: Connections of which the memory is measured, beyond the first ones.
CONNECTIONS, FIRST = 2000, 200
FRAMES = np.zeros((4, 64, 64, 3), np.uint8)
FIGURES = ROOT / "docs" / "benchmarks" / "growth.json"

#: CPU microseconds of a score, by the number of callers, replicas or items of a batch, as in JSON.
Series = dict[str, int]

# Items, another one for each number


def answer(number: int) -> Item:
    words = " ".join(f"word{each}" for each in range(100))
    return {
        "response": tool_answer(words, weather(number + number % 2)),
        "ground_truth": tool_answer("I need the weather.", weather(number)),
    }


def weather(number: int) -> Item:
    return {"name": "get_weather", "parameters": {"city": f"city {number}", "days": 3}}


def episode(number: int) -> Item:
    steps = {"success": True, "steps": number % 500, "max_steps": 500}
    return {"uid": f"episode-{number}", "kind": "efficiency", **steps}


def clip(number: int) -> Item:
    return {"task_text": f"task {number}", "video_path": "clip.mp4", "nframes": 4}


def frames(number: int) -> VideoRequest:
    return raw_frames(f"task {number}", FRAMES, nframes=4)


class Work(NamedTuple):
    """Items of a service, and the most of them in a batch."""

    name: str
    item: Callable[[int], Item | VideoRequest]
    numbers: Iterator[int]
    most: int = MAX_BATCH_ITEMS
    is_cached: bool = False

    def request(self, items: int | None, prefix: str) -> bytes:
        """Return a request for a batch; for None, for a single score, if the service has such."""
        batch = [self.item(next(self.numbers)) for _ in range(items or 1)]
        if items is None and self.item is not episode:
            return post(f"{prefix}/score", batch[0])
        return post(f"{prefix}/score/batch", batch if self.item is frames else {"items": batch})

    def check(self, answer: bytes, items: int) -> None:
        assert answer.count(b'"status":"ok"') == items, answer[:1000]
        assert answer.count(b'"cached":true') == items * self.is_cached, answer[:1000]


CACHED = Work("code, cached", printing, itertools.cycle(range(PROGRAMS)), is_cached=True)
#: What is scored, by service.
WORKS = {
    "tools": [Work("tools", answer, itertools.count())],
    "episode": [Work("episode", episode, itertools.count(), MAX_EPISODES)],
    "code": [Work("code", printing, itertools.count(PROGRAMS)), CACHED],
    "video": [
        Work("video by path", clip, itertools.count()),
        Work("video by frames", frames, itertools.count()),
    ],
}


def replica(name: str, folder: Path) -> AbstractContextManager[Server]:
    if name == "video":
        (folder / "clip.mp4").write_bytes(encode("mp4", frames=8, width=64, height=64))
        return serving(name, FakeJudge(), video_root=[folder])
    return serving(name, **({"cache": str(folder / "code.sqlite")} if name == "code" else {}))


class Fleet(NamedTuple):
    """Where callers send requests, and the processes whose CPU time counts."""

    ports: Sequence[int]
    pids: Sequence[int]
    prefix: str = ""


@contextlib.contextmanager
def behind_gateway(name: str, replicas: Fleet) -> Iterator[Fleet]:
    flags = [f"--service={name}=http://127.0.0.1:{each}" for each in replicas.ports]
    command = ["-m", "rewardfleet_server", "gateway", *flags, "--port"]
    with program_serving("/readyz", *command) as gateway:
        yield Fleet([gateway.port], [*replicas.pids, gateway.pid], f"/{name}")


# Measuring


class Load:
    """Callers of a fleet, on connections that stay open.

    Args:
        items: How many items their requests have; None for single scores.
    """

    def __init__(self, fleet: Fleet, work: Work, callers: int, items: int | None = None) -> None:
        self._fleet, self._work, self._callers, self._items = fleet, work, callers, items
        self._scores, self._cpu_s = 0, 0.0

    @property
    def cpu_us(self) -> float:
        return self._cpu_s / self._scores * 1e6

    async def open(self) -> None:
        """Connect all callers, and let each send a request that does not count."""
        ports = itertools.islice(itertools.cycle(self._fleet.ports), self._callers)
        self._connections = [await Connection.open(port) for port in ports]
        await self._send_for(0)

    async def measure(self) -> None:
        started = sum(map(cpu_seconds, self._fleet.pids))
        self._scores += await self._send_for(SECONDS)
        self._cpu_s += sum(map(cpu_seconds, self._fleet.pids)) - started

    def close(self) -> None:
        for each in self._connections:
            each.close()

    async def _send_for(self, seconds: float) -> int:
        is_before = before(seconds)

        async def call(connection: Connection) -> int:
            scores = 0
            while not scores or is_before(None):
                request = self._work.request(self._items, self._fleet.prefix)
                answer = await connection.request(request)
                self._work.check(answer.body, self._items or 1)
                scores += self._items or 1
            return scores

        return sum(await asyncio.gather(*map(call, self._connections)))


async def in_turns(loads: dict[int, Load], compared: Sequence[int]) -> Series:
    """Return the CPU time of a score of each load; of those that are compared more precisely."""
    for load in loads.values():
        await load.open()
    for round_ in range(ROUNDS):
        for number, load in loads.items():
            if number in compared or not round_ % 4:
                await load.measure()
    for load in loads.values():
        load.close()
    return {str(number): round(load.cpu_us) for number, load in loads.items()}


def growth(name: str) -> Iterator[tuple[str, Series]]:
    """Measure a service; yield the title of each series, and the series."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = [stack.enter_context(replica(name, folder)) for _ in range(max(REPLICAS))]
        ports, pids = zip(*replicas, strict=True)
        direct = {count: Fleet(ports[:count], pids[:count]) for count in REPLICAS}
        gateways = {
            count: stack.enter_context(behind_gateway(name, fleet))
            for count, fleet in direct.items()
        }
        for work in WORKS[name]:
            if work is CACHED:
                fill_cache(ports)
            loads = {count: Load(direct[1], work, count) for count in CALLERS}
            yield f"{work.name}; callers", asyncio.run(in_turns(loads, (8, 512)))
            for title, fleets in (("replicas", direct), ("replicas behind the gateway", gateways)):
                loads = {n: Load(fleet, work, REPLICA_CALLERS) for n, fleet in fleets.items()}
                yield f"{work.name}; {title}", asyncio.run(in_turns(loads, (1, 8)))
            sizes = [each for each in BATCHES if each <= work.most]
            loads = {size: Load(direct[1], work, BATCH_CALLERS, size) for size in sizes}
            yield f"{work.name}; items of a batch", asyncio.run(in_turns(loads, (16, 256)))


def fill_cache(ports: Sequence[int]) -> None:
    """Score the programs once, and let all replicas read the verdicts from their file."""
    for port in ports:
        send(port, [CACHED.request(None, "") for _ in range(PROGRAMS)], callers=8)


# Memory


def memory() -> Iterator[Ratio]:
    """Measure the memory of an idle connection and of requests that wait, at both places."""
    sleeping = "import time; time.sleep(60)"
    kinds = {
        "an idle connection": (20, "/healthz", None),
        "a request that waits, its body read": (40, "/score", stdio(sleeping, ("", ""))),
        "a request in line": (20, "/run_code", {"code": sleeping, "language": "python"}),
    }
    for place in ("service", "gateway"):
        for name, (limit, path, body) in kinds.items():
            with ExitStack() as stack:
                server = stack.enter_context(
                    serving("code", cache=None, max_in_flight=1, max_queue_depth=4096)
                )
                fleet = Fleet([server.port], [server.pid])
                if place == "gateway":
                    fleet = stack.enter_context(behind_gateway("code", fleet))
                request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
                if body:
                    request = post(fleet.prefix + path, body)
                kib = asyncio.run(kib_each(fleet.ports[0], fleet.pids[-1], request))
            yield Ratio(f"KiB of {name} at a {place}; limit", kib, limit, "<= 1")


async def kib_each(port: int, pid: int, request: bytes) -> float:
    """Return the KiB by which each of many connections makes a process larger."""
    writers = []

    async def connect(count: int) -> float:
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            writers.append(writer)
        while await cpu_in_a_moment(pid) > 0.02:  # until all of them have been read
            pass
        return resident_mib(pid, with_descendants=False)

    first = await connect(FIRST)
    grown = await connect(CONNECTIONS) - first
    for writer in writers:
        writer.close()
    return grown * 1024 / CONNECTIONS


async def cpu_in_a_moment(pid: int) -> float:
    started = cpu_seconds(pid)
    await asyncio.sleep(0.5)
    return cpu_seconds(pid) - started


# Report

#: What is compared with what, and the limit, by the last words of a series' title.
LIMITS = {
    "callers": (512, 8, "<= 1.15"),
    "replicas": (8, 1, "<= 1.15"),
    "replicas behind the gateway": (8, 1, "<= 1.15"),
    "items of a batch": (256, 16, "<= 1"),
}


def measured(name: str) -> Iterator[Ratio]:
    """Measure a service, and keep and draw its figures beside those of the others."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for title, series in growth(name):
        figures[title] = series
        cells = (f"{number}: {us} us" for number, us in series.items())
        print(f"{title:48}", *cells, sep="  ", flush=True)
        ours, baseline, limit = LIMITS[title.partition("; ")[2]]
        name = f"{title}: us at {ours}; at {baseline}"
        yield Ratio(name, series[str(ours)], series[str(baseline)], limit)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    draw(figures)


def draw(figures: dict[str, Series]) -> None:
    """Draw the CPU time of a score relative to what its limit compares it with."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth"})
    figure, axes = plt.subplots(1, len(LIMITS), figsize=(13, 3.6))
    for axis, (kind, (_, baseline, limit)) in zip(axes, LIMITS.items(), strict=True):
        numbers: list[int] = []
        for title, series in figures.items():
            name, _, own = title.partition("; ")
            if own == kind:
                numbers = max(numbers, [int(each) for each in series], key=len)
                relative = [each / series[str(baseline)] for each in series.values()]
                axis.plot([int(each) for each in series], relative, marker=".", label=name)
        axis.axhline(float(limit.split()[1]), color="grey", linestyle=":")
        axis.set(**({"yscale": "log"} if kind == "items of a batch" else {"ylim": (0, 1.6)}))
        axis.set(xscale="log", xlabel=kind)
        axis.set_xticks(numbers, map(str, numbers))
        axis.minorticks_off()
    axes[0].set_ylabel("CPU time of a score, relative")
    axes[-1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(FIGURES.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    raise_descriptor_limit()
    run({**{name: partial(measured, name) for name in WORKS}, "memory": memory})
