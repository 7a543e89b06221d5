"""`make bench-episode`: the speed of the episode service, as ratios measured in one run.

Uses loopback only, with fixed counts. Exits with 1 if a ratio misses its limit.
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

from rewardfleet.episodes import (
    Grouping,
    aggregate,
    all_equal,
    by_temperature,
    compute_rewards,
    dtw_distances,
    efficiency,
    majority_vote,
    normalize,
    resample,
    resampled_distances,
    score_episodes,
    single_linkage,
    validate_batch,
)
from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet_server.episode.app import create_app
from rewardfleet_server.episode.decode import Item
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.logs import configure_logging
from rewardfleet_server.serve import Server
from rewardfleet_server.testing import wait_until

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, post

EPISODES, BATCH, GROUP = 100_000, 1_000, 8
ROUNDS = 3
OPTIONS = EpisodeOptions(normalize="group_std")
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    passed = [http(), arithmetic(), clustering(), memory()]
    return 0 if all(passed) else 1


# Over HTTP


def bodies() -> list[bytes]:
    """Return batches of 100,000 different episodes with scalar fields."""
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
    """Compare the service's CPU per episode with parsing the same JSON plus the arithmetic."""
    requests = bodies()
    with service() as (port, pid):
        asyncio.run(send(port, requests[:10]))
        service_us, parse_us, compute_us, rates = [], [], [], []
        for _ in range(ROUNDS):  # alternating, so that other load on the machine affects all
            before, started = cpu_seconds(pid), time.perf_counter()
            asyncio.run(send(port, requests))
            rates.append(EPISODES / (time.perf_counter() - started))
            service_us.append((cpu_seconds(pid) - before) / EPISODES * 1e6)
            parse, compute = baseline(requests)
            parse_us.append(parse)
            compute_us.append(compute)
    cpu, parse, compute = (statistics.median(each) for each in (service_us, parse_us, compute_us))
    ratio = cpu / (parse + compute)
    print(f"{EPISODES} episodes in batches of {BATCH} over HTTP, {os.cpu_count()} cores")
    print(f"  CPU per episode: {cpu:.2f} us in the service (its process, HTTP and log included)")
    print(f"  msgspec {parse:.2f} us + arithmetic {compute:.2f} us; ratio {ratio:.2f}, limit 3")
    print(f"  {statistics.median(rates):.0f} episodes/s, responses checked; target 50000")
    return ratio <= 3


async def send(port: int, requests: list[bytes]) -> None:
    """Send all batches over two connections; check that every episode has a score."""
    queue = iter(requests)

    async def caller() -> None:
        connection = await Connection.open(port)
        for body in queue:
            status, response, _ = await connection.request(post("/score/batch", body))
            assert status == 200, response
            assert response.count(b'"status":"ok"') == BATCH, response[:500]
        connection.close()

    await asyncio.gather(caller(), caller())


def baseline(requests: list[bytes]) -> tuple[float, float]:
    """Return microseconds of CPU per episode: msgspec into typed items, and the arithmetic."""

    class Body(msgspec.Struct):
        items: list[Item]
        options: dict[str, object]

    decoder = msgspec.json.Decoder(Body)
    started = time.process_time()
    for body in requests:
        decoder.decode(body)
    parsed = time.process_time()
    batches = [decoder.decode(body).items for body in requests]
    computing = time.process_time()
    for items in batches:
        rewards = compute_rewards(validate_batch(items, OPTIONS), OPTIONS)
        aggregate(rewards, OPTIONS)
        by_temperature(rewards)
    ended = time.process_time()
    return (parsed - started) / EPISODES * 1e6, (ended - computing) / EPISODES * 1e6


# The arithmetic


def arithmetic() -> bool:
    """Compare efficiency, advantages and the keep mask of arrays with a loop over items."""
    rng = np.random.default_rng(0)
    success = (rng.random(EPISODES) < 0.5).astype(float)
    steps = rng.integers(1, 500, EPISODES).astype(float)
    codes = np.arange(EPISODES) // GROUP

    def vectorized() -> tuple[np.ndarray, np.ndarray]:
        rewards = efficiency(success, steps, 500)
        grouping = Grouping(codes, EPISODES // GROUP)
        keep = ~all_equal(rewards, grouping, 1e-3)
        return normalize(rewards, grouping, by_std=True), keep

    rows = list(zip(success.tolist(), steps.tolist(), codes.tolist(), strict=True))

    def loop() -> tuple[list[float], list[bool]]:
        groups: dict[int, list[float]] = {}
        rewards = []
        for succeeded, taken, code in rows:
            reward = 1 / (1 + taken / 500) if succeeded else 0.0
            rewards.append(reward)
            groups.setdefault(code, []).append(reward)
        advantages = []
        for (_, _, code), reward in zip(rows, rewards, strict=True):
            own = groups[code]
            mean = sum(own) / len(own)
            std = math.sqrt(sum((each - mean) ** 2 for each in own) / (len(own) - 1))
            advantages.append((reward - mean) / (std + 1e-6))
        return advantages, [max(own) - min(own) > 1e-3 for own in groups.values()]

    assert np.allclose(vectorized()[0], loop()[0]) and vectorized()[1].tolist() == loop()[1]
    fast, slow = best(vectorized, 10), best(loop, 2)
    ratio = slow / fast
    print(f"the arithmetic of {EPISODES} episodes: {fast * 1e3:.1f} ms, a per-item loop ", end="")
    print(f"{slow * 1e3:.0f} ms; ratio {ratio:.0f}, limit 50")
    return ratio >= 50


def clustering() -> bool:
    """Time the clustering of groups of 8 trajectories of 100 x 7: it is linear in groups."""
    rng = np.random.default_rng(0)
    counts, seconds = (1250, 2500, 5000, 10_000), []
    for count in counts:
        spent = 0.0
        for _ in range(0, count, 250):  # in parts, to limit memory
            actions = list(rng.normal(size=(250 * GROUP, 100, 7)))
            started = time.perf_counter()
            resampled = resample(actions).reshape(250, GROUP, -1, 7)
            majority_vote(single_linkage(resampled_distances(resampled), 0.5))
            spent += time.perf_counter() - started
        seconds.append(spent)
        print(f"{count} groups of {GROUP} x [100, 7] clustered in {spent:.2f} s")
    started = time.perf_counter()
    for _ in range(100):
        dtw_distances(list(rng.normal(size=(GROUP, 100, 7))))
    spent = time.perf_counter() - started
    print(f"  by time warping, 100 groups: {spent:.2f} s, so 10000 in {spent * 100:.0f} s")
    growth = seconds[-1] / seconds[0] / (counts[-1] / counts[0])
    print(f"  time per group, most to fewest: {growth:.2f} (linear is 1), limit 1.5")
    return growth <= 1.5


def memory() -> bool:
    """Compare the memory per episode, with actions, of small and large batches."""
    import tracemalloc

    def peak(count: int) -> float:
        actions = np.zeros((50, 7))
        items = [Item(str(n), group=str(n // GROUP), success=True, actions=actions)  # type: ignore[arg-type] # an array
                 for n in range(count)]  # fmt: skip
        options = EpisodeOptions(weights={"low_energy": 1.0}, clusters={})  # type: ignore[arg-type]
        tracemalloc.start()
        score_episodes(items, options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / count

    few, many = peak(1024), peak(4096 * 4)
    print(f"memory per episode, batch of 1024 and of 16384: {few:.0f} and {many:.0f} bytes")
    return many <= 1.5 * few


def best(work: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


# The service


@contextmanager
def service() -> Iterator[tuple[int, int]]:
    """Run the service in a process; yield its port and pid."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=serve, args=(sender,), daemon=True)
    process.start()
    try:
        assert receiver.poll(30), "the service did not start"
        yield receiver.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join(10)


def serve(pipe: Pipe) -> None:
    settings = EpisodeSettings(port=0)
    configure_logging("info")
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    server = Server(create_app(settings), settings)

    def send_port() -> None:
        wait_until(lambda: server.started)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])

    import threading

    threading.Thread(target=send_port, daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    server.run()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
