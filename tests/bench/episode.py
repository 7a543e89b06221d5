"""`make bench-episode`: the speed of the episode service, as ratios measured in one run.

Loopback only, bounded in count and time. Exits with 1 where a ratio misses its bound.
"""

import asyncio
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import msgspec
import numpy as np
from rewardfleet_server.episode.reading import Item

from rewardfleet.episodes import (
    Grouping,
    clusters,
    dtw_distances,
    efficiency,
    majority,
    measure,
    normalise,
    resampled,
    resampled_distances,
    settle,
)
from rewardfleet.episodes.groups import all_equal
from rewardfleet.episodes.temperatures import by_temperature
from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet_server.episode.app import create_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import wait_until

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, post

EPISODES, BATCH, GROUP = 100_000, 1_000, 8
ROUNDS = 3
OPTIONS = EpisodeOptions(normalise="group_deviation")
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    held = [http(), arithmetic(), clustering(), memory()]
    return 0 if all(held) else 1


# Over HTTP


def bodies() -> list[bytes]:
    """100,000 different episodes of scalar fields, in batches."""
    rng = np.random.default_rng(0)
    steps, temperature = rng.integers(1, 500, EPISODES), rng.uniform(0.6, 0.9, EPISODES)
    success = rng.random(EPISODES) < 0.5
    items = [
        {
            "uid": f"run-7-step-12-{number}",
            "group": f"prompt-{number // GROUP}",
            "kind": "efficiency",
            "success": bool(success[number]),
            "steps": int(steps[number]),
            "max_steps": 500,
            "temperature": round(float(temperature[number]), 2),
        }
        for number in range(EPISODES)
    ]
    options = OPTIONS.model_dump(mode="json", exclude_unset=True)
    return [
        json.dumps({"items": items[first : first + BATCH], "options": options}).encode()
        for first in range(0, EPISODES, BATCH)
    ]


def http() -> bool:
    """CPU of an episode in the service, beside parsing the same JSON plus the arithmetic."""
    sent = bodies()
    with service() as (port, pid):
        asyncio.run(ask(port, sent[:10]))
        ours, parsing, reckoning, rates = [], [], [], []
        for _ in range(ROUNDS):  # in turns, so that a busy moment of the machine meets all
            before, started = cpu_seconds(pid), time.perf_counter()
            asyncio.run(ask(port, sent))
            rates.append(EPISODES / (time.perf_counter() - started))
            ours.append((cpu_seconds(pid) - before) / EPISODES * 1e6)
            parse, reckon = bare(sent)
            parsing.append(parse)
            reckoning.append(reckon)
    cpu, parse, reckon = (statistics.median(each) for each in (ours, parsing, reckoning))
    ratio = cpu / (parse + reckon)
    print(f"{EPISODES} episodes in batches of {BATCH} over HTTP, {os.cpu_count()} cores")
    print(f"  CPU an episode: {cpu:.2f} us in the service (its process, HTTP and log included)")
    print(f"  msgspec {parse:.2f} us + arithmetic {reckon:.2f} us; ratio {ratio:.2f}, bound 3")
    print(f"  {statistics.median(rates):.0f} episodes/s, answers checked by the caller; aim 50000")
    return ratio <= 3


async def ask(port: int, sent: list[bytes]) -> None:
    """Send all batches over two connections; every episode of every answer has a score."""
    queue = iter(sent)

    async def caller() -> None:
        connection = await Connection.open(port)
        for body in queue:
            status, answer, _ = await connection.ask(post("/score/batch", body))
            assert status == 200, answer
            assert answer.count(b'"status":"ok"') == BATCH, answer[:500]
        connection.close()

    await asyncio.gather(caller(), caller())


def bare(sent: list[bytes]) -> tuple[float, float]:
    """Microseconds of CPU an episode: msgspec into typed items, and the arithmetic on them."""

    class Body(msgspec.Struct):
        items: list[Item]
        options: dict[str, object]

    decoder = msgspec.json.Decoder(Body)
    started = time.process_time()
    for body in sent:
        decoder.decode(body)
    parsed = time.process_time()
    batches = [decoder.decode(body).items for body in sent]
    reckoning = time.process_time()
    for items in batches:
        by_temperature(settle(measure(items, OPTIONS), OPTIONS))
    ended = time.process_time()
    return (parsed - started) / EPISODES * 1e6, (ended - reckoning) / EPISODES * 1e6


# The arithmetic


def arithmetic() -> bool:
    """Efficiency, advantages and the all-equal test of arrays, beside a loop over the items."""
    rng = np.random.default_rng(0)
    success = (rng.random(EPISODES) < 0.5).astype(float)
    steps = rng.integers(1, 500, EPISODES).astype(float)
    codes = np.arange(EPISODES) // GROUP

    def vectorised() -> tuple[np.ndarray, np.ndarray]:
        rewards = efficiency(success, steps, 500)
        grouping = Grouping(codes, EPISODES // GROUP)
        keep = ~all_equal(rewards, grouping, 1e-3)
        return normalise(rewards, grouping, by_deviation=True), keep

    rows = list(zip(success.tolist(), steps.tolist(), codes.tolist(), strict=True))

    def loop() -> tuple[list[float], list[bool]]:
        groups: dict[int, list[float]] = {}
        rewards = []
        for won, taken, code in rows:
            reward = 1 / (1 + taken / 500) if won else 0.0
            rewards.append(reward)
            groups.setdefault(code, []).append(reward)
        advantages = []
        for (_, _, code), reward in zip(rows, rewards, strict=True):
            own = groups[code]
            mean = sum(own) / len(own)
            deviation = math.sqrt(sum((each - mean) ** 2 for each in own) / (len(own) - 1))
            advantages.append((reward - mean) / (deviation + 1e-6))
        return advantages, [max(own) - min(own) > 1e-3 for own in groups.values()]

    assert np.allclose(vectorised()[0], loop()[0]) and vectorised()[1].tolist() == loop()[1]
    fast, slow = best(vectorised, 10), best(loop, 2)
    ratio = slow / fast
    print(f"the arithmetic of {EPISODES} episodes: {fast * 1e3:.1f} ms, a per-item loop ", end="")
    print(f"{slow * 1e3:.0f} ms; ratio {ratio:.0f}, bound 50")
    return ratio >= 50


def clustering() -> bool:
    """Groups of 8 trajectories of 100 x 7, resampled, compared, clustered, voted."""
    rng = np.random.default_rng(0)
    counts, seconds = (1250, 2500, 5000, 10_000), []
    for count in counts:
        spent = 0.0
        for _ in range(0, count, 250):  # made and done with part by part
            actions = list(rng.normal(size=(250 * GROUP, 100, 7)))
            started = time.perf_counter()
            brought = resampled(actions).reshape(250, GROUP, -1, 7)
            majority(clusters(resampled_distances(brought), 0.5))
            spent += time.perf_counter() - started
        seconds.append(spent)
        print(f"{count} groups of {GROUP} x [100, 7] clustered in {spent:.2f} s")
    started = time.perf_counter()
    for _ in range(100):
        dtw_distances(list(rng.normal(size=(GROUP, 100, 7))))
    spent = time.perf_counter() - started
    print(f"  by time warping, 100 groups: {spent:.2f} s, so 10000 in {spent * 100:.0f} s")
    growth = seconds[-1] / seconds[0] / (counts[-1] / counts[0])
    print(f"  time a group, most to fewest: {growth:.2f} (linear is 1), bound 1.5")
    return growth <= 1.5


def memory() -> bool:
    """Bytes an episode with actions takes while a batch is settled, of small and large batches."""
    import tracemalloc

    def peak(count: int) -> float:
        actions = np.zeros((50, 7))
        items = [Item(str(n), group=str(n // GROUP), success=True, actions=actions)  # type: ignore[arg-type] # as a notebook may
                 for n in range(count)]  # fmt: skip
        options = EpisodeOptions(weights={"energy": 1.0}, clusters={})  # type: ignore[arg-type]
        tracemalloc.start()
        settle(measure(items, options), options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / count

    few, many = peak(1024), peak(4096 * 4)
    print(f"memory of an episode, batch of 1024 and of 16384: {few:.0f} and {many:.0f} bytes")
    return many <= 1.5 * few


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some rounds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


# The service


@contextmanager
def service() -> Iterator[tuple[int, int]]:
    """The service in a process of its own; yield port and pid."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        assert ours.poll(30), "the service did not start"
        yield ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join(10)


def serve(pipe: Pipe) -> None:
    settings = EpisodeSettings(port=0)
    configure_logging("info")
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    server = Server(create_app(settings), settings)

    def tell() -> None:
        wait_until(lambda: server.started)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])

    import threading

    threading.Thread(target=tell, daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    server.run()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
