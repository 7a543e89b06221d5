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
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from harness import (
    Connection,
    Ratio,
    before,
    cpu_seconds,
    post,
    report,
    resident_mib,
    send,
    serving,
    wait_until_ready,
)

from rewardfleet.wire.episode import MAX_EPISODES
from rewardfleet.wire.frames import FRAMES_TYPE, LENGTH_BYTES
from rewardfleet.wire.score import MAX_BATCH_ITEMS
from rewardfleet_server.code.app import create_app as create_code
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.episode.app import create_app as create_episode
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.serve import raise_descriptor_limit
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.tools.app import create_app as create_tools
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up.settings import free_port
from rewardfleet_server.video.app import create_app as create_video
from rewardfleet_server.video.settings import VideoSettings

mpl.use("Agg")
from matplotlib import pyplot as plt

sys.path.append(str(Path(__file__).parent.parent))
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
FRAME_SHAPE, FRAME_BYTES = (4, 64, 64, 3), 4 * 64 * 64 * 3
FIGURES = Path(__file__).parents[2] / "docs" / "benchmarks" / "growth.json"

Item = dict[str, Any]
#: CPU microseconds of a score, by the number of callers, replicas or items of a batch, as in JSON.
Series = dict[str, int]

# Items, another one for each number


def answer(number: int) -> Item:
    words = " ".join(f"word{each}" for each in range(100))
    return {
        "response": tool_answer(number + number % 2, words),
        "ground_truth": tool_answer(number, "I need the weather."),
    }


def tool_answer(number: int, think: str) -> str:
    call = json.dumps({"name": "get_weather", "parameters": {"city": f"city {number}", "days": 3}})
    return f"<think>{think}</think>\n<tool_call>\n{call}\n</tool_call>"


def episode(number: int) -> Item:
    steps = {"success": True, "steps": number % 500, "max_steps": 500}
    return {"uid": f"episode-{number}", "kind": "efficiency", **steps}


def program(number: int) -> Item:
    tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": f"{number}\n"}]}
    return {"revision": f"print({number})", "tests": tests}


def clip(number: int) -> Item:
    return {"task_text": f"task {number}", "video_path": "clip.mp4", "nframes": 4}


def frames(number: int) -> Item:
    return {"task_text": f"task {number}", "frames": {"shape": FRAME_SHAPE}, "nframes": 4}


class Work(NamedTuple):
    """Items of a service, and the most of them in a batch."""

    name: str
    item: Callable[[int], Item]
    numbers: Iterator[int]
    most: int = MAX_BATCH_ITEMS
    is_cached: bool = False

    def request(self, items: int | None, prefix: str) -> bytes:
        """Return a request for a batch; for None, for a single score, if the service has such."""
        batch = [self.item(next(self.numbers)) for _ in range(items or 1)]
        if items is None and self.item is not episode:
            return encoded(f"{prefix}/score", batch[0], batch)
        return encoded(f"{prefix}/score/batch", {"items": batch}, batch)

    def check(self, answer: bytes, items: int) -> None:
        assert answer.count(b'"status":"ok"') == items, answer[:1000]
        assert answer.count(b'"cached":true') == items * self.is_cached, answer[:1000]


def encoded(path: str, body: object, items: Sequence[Item]) -> bytes:
    """Return a request with a body of JSON, or of frames if the items have some."""
    with_frames = [each["frames"] for each in items if "frames" in each]
    for number, each in enumerate(with_frames):
        each["offset"] = number * FRAME_BYTES
    content = json.dumps(body).encode()
    if not with_frames:
        return post(path, content)
    head = len(content).to_bytes(LENGTH_BYTES, "little")
    return post(path, head + content + bytes(FRAME_BYTES * len(with_frames)), FRAMES_TYPE)


TOOLS = Work("tools", answer, itertools.count())
EPISODE = Work("episode", episode, itertools.count(), MAX_EPISODES)
CODE = Work("code", program, itertools.count(PROGRAMS))
CACHED = Work("code, cached", program, itertools.cycle(range(PROGRAMS)), is_cached=True)
CLIPS = Work("video by path", clip, itertools.count())
FRAMES = Work("video by frames", frames, itertools.count())

# Services


def serve_tools(_: Path) -> AbstractContextManager[tuple[int, int]]:
    return serving(create_tools, ToolsSettings(port=0))


def serve_episode(_: Path) -> AbstractContextManager[tuple[int, int]]:
    return serving(create_episode, EpisodeSettings(port=0))


def serve_code(folder: Path) -> AbstractContextManager[tuple[int, int]]:
    return serving(create_code, CodeSettings(port=0, cache=str(folder / "code.sqlite")))


def serve_video(folder: Path) -> AbstractContextManager[tuple[int, int]]:
    (folder / "clip.mp4").write_bytes(encode("mp4", frames=8, width=64, height=64))
    settings = VideoSettings(port=0, video_root=[folder])
    return serving(create_video, settings, {"fake": FakeJudge()})


#: What runs a replica in the folder of its fleet, and what is scored.
SERVICES = {
    "tools": (serve_tools, [TOOLS]),
    "episode": (serve_episode, [EPISODE]),
    "code": (serve_code, [CODE, CACHED]),
    "video": (serve_video, [CLIPS, FRAMES]),
}


class Fleet(NamedTuple):
    """Where callers send requests, and the processes whose CPU time counts."""

    ports: Sequence[int]
    pids: Sequence[int]
    prefix: str = ""


@contextlib.contextmanager
def behind_gateway(name: str, replicas: Fleet) -> Iterator[Fleet]:
    """Run `rewardfleet gateway` in front of replicas."""
    port = free_port()
    flags = [f"--service={name}=http://127.0.0.1:{each}" for each in replicas.ports]
    command = [sys.executable, "-m", "rewardfleet_server", "gateway", f"--port={port}", *flags]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}/readyz")
            yield Fleet([port], [*replicas.pids, process.pid], f"/{name}")
        finally:
            process.terminate()


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
        """CPU microseconds of a score."""
        return self._cpu_s / self._scores * 1e6

    async def open(self) -> None:
        """Connect all callers, and let each send a request that does not count."""
        ports = itertools.islice(itertools.cycle(self._fleet.ports), self._callers)
        self._connections = [await Connection.open(port) for port in ports]
        await self._send_for(0)

    async def measure(self) -> None:
        """Score for some time."""
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
    serve, works = SERVICES[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = [stack.enter_context(serve(folder)) for _ in range(max(REPLICAS))]
        ports, pids = zip(*replicas, strict=True)
        direct = {count: Fleet(ports[:count], pids[:count]) for count in REPLICAS}
        gateways = {
            count: stack.enter_context(behind_gateway(name, fleet))
            for count, fleet in direct.items()
        }
        for work in works:
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


def memory() -> list[Ratio]:
    """Measure the memory of an idle connection and of requests that wait, at both places."""
    sleeping = "import time; time.sleep(60)"
    test = {"kind": "stdio", "cases": [{"stdin": "", "stdout": ""}]}
    native: Item = {"revision": sleeping, "tests": test}
    foreign: Item = {"code": sleeping, "language": "python"}

    def kinds(prefix: str) -> list[tuple[str, int, bytes]]:
        return [
            ("an idle connection", 20, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("a request that waits, its body read", 40, encoded(f"{prefix}/score", native, [])),
            ("a request in line", 20, encoded(f"{prefix}/run_code", foreign, [])),
        ]

    ratios = []
    settings = CodeSettings(port=0, cache=None, max_in_flight=1, max_queue_depth=4096)
    for place in ("service", "gateway"):
        for name, limit, request in kinds("/code" if place == "gateway" else ""):
            with ExitStack() as stack:
                port, pid = stack.enter_context(serving(create_code, settings))
                fleet = Fleet([port], [pid])
                if place == "gateway":
                    fleet = stack.enter_context(behind_gateway("code", fleet))
                kib = asyncio.run(kib_each(fleet.ports[0], fleet.pids[-1], request))
            ratios.append(Ratio(f"KiB of {name} at a {place}; limit", kib, limit, "<= 1"))
    return ratios


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


def main() -> int:
    raise_descriptor_limit()
    parts = sys.argv[1:] or [*SERVICES, "memory"]
    measured: dict[str, Series] = {}
    for part in parts:
        for title, series in growth(part) if part in SERVICES else ():
            measured[title] = series
            cells = (f"{number}: {us} us" for number, us in series.items())
            print(f"{title:48}", *cells, sep="  ", flush=True)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    figures.update(measured)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    draw(figures)
    ratios = [limited(title, series) for title, series in measured.items()]
    return report(ratios + (memory() if "memory" in parts else []))


def limited(title: str, series: Series) -> Ratio:
    ours, baseline, limit = LIMITS[title.partition("; ")[2]]
    name = f"{title}: us at {ours}; at {baseline}"
    return Ratio(name, series[str(ours)], series[str(baseline)], limit)


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
        if kind == "items of a batch":
            axis.set(yscale="log")
        else:
            axis.set(ylim=(0, 1.6))
        axis.set(xscale="log", xlabel=kind)
        axis.set_xticks(numbers, map(str, numbers))
        axis.minorticks_off()
    axes[0].set_ylabel("CPU time of a score, relative")
    axes[-1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(FIGURES.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
