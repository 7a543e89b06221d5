"""`make bench-episode`: the speed of the episode service, as ratios measured in one run.

Uses loopback only, with fixed counts. Exits with 1 if a ratio misses its limit.
"""

import json
import math
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
from harness import Ratio, medians_in_turns, post, run, seconds_of, send, serving

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
from rewardfleet_server.episode.decode import Item
from rewardfleet_server.system.threads import usable_cores

EPISODES, BATCH, GROUP = 100_000, 1_000, 8
ROUNDS = 3
OPTIONS = EpisodeOptions(normalize="group_std")


# Over HTTP


def bodies() -> list[bytes]:
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


def http() -> Iterator[Ratio]:
    """Compare the service's CPU per episode with parsing the same JSON plus the arithmetic."""
    batches = bodies()
    requests = [post("/score/batch", body) for body in batches]
    rates: list[float] = []

    def score() -> None:
        answers, seconds = send(service.port, requests, callers=2)
        rates.append(EPISODES / seconds)
        for answer in answers:
            assert answer.body.count(b'"status":"ok"') == BATCH, answer.body[:500]

    with serving("episode") as service:
        send(service.port, requests[:10], callers=2)
        seconds = medians_in_turns(
            lambda: service.cpu_of(score),
            lambda: seconds_of(lambda: [*map(parse, batches)], clock=time.process_time),
            lambda: arithmetic_seconds(batches),
            rounds=ROUNDS,
        )
    cpu, parsing, computing = (each / EPISODES * 1e6 for each in seconds)
    print(f"{EPISODES} episodes in batches of {BATCH} over HTTP, {usable_cores()} cores")
    print(f"  msgspec {parsing:.2f} us + arithmetic {computing:.2f} us of CPU per episode")
    print(f"  {statistics.median(rates):.0f} episodes/s, responses checked; target 50000")
    name = "CPU us per episode over HTTP; msgspec + arithmetic"
    yield Ratio(name, cpu, parsing + computing, "<= 3")


class Body(msgspec.Struct):
    items: list[Item]
    options: dict[str, object]


decoder = msgspec.json.Decoder(Body)


def parse(body: bytes) -> list[Item]:
    return decoder.decode(body).items


def arithmetic_seconds(batches: list[bytes]) -> float:
    parsed = [parse(body) for body in batches]

    def work() -> None:
        for items in parsed:
            rewards = compute_rewards(validate_batch(items, OPTIONS), OPTIONS)
            aggregate(rewards, OPTIONS)
            by_temperature(rewards)

    return seconds_of(work, clock=time.process_time)


# The arithmetic


def arithmetic() -> Iterator[Ratio]:
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
    fast, slow = (
        min(seconds_of(work) for _ in range(rounds)) * 1000
        for work, rounds in ((vectorized, 10), (loop, 2))
    )
    yield Ratio(f"ms of the arithmetic of {EPISODES} episodes; a loop", fast, slow, "<= 1/50")


def clustering() -> Iterator[Ratio]:
    """Time the clustering of groups of 8 trajectories of 100 x 7: it is linear in groups."""
    rng = np.random.default_rng(0)

    def cluster(actions: list[np.ndarray]) -> None:
        resampled = resample(actions).reshape(250, GROUP, -1, 7)
        majority_vote(single_linkage(resampled_distances(resampled), 0.5))

    def warp() -> None:
        for _ in range(100):
            dtw_distances(list(rng.normal(size=(GROUP, 100, 7))))

    per_group_us = []
    for count in (1250, 2500, 5000, 10_000):
        spent = 0.0
        for _ in range(0, count, 250):  # in parts, to limit memory
            actions = list(rng.normal(size=(250 * GROUP, 100, 7)))
            spent += seconds_of(partial(cluster, actions))
        per_group_us.append(spent / count * 1e6)
        print(f"{count} groups of {GROUP} x [100, 7] clustered in {spent:.2f} s")
    spent = seconds_of(warp)
    print(f"  by time warping, 100 groups: {spent:.2f} s, so 10000 in {spent * 100:.0f} s")
    few, *_, many = per_group_us
    yield Ratio("us to cluster a group, among 10,000; among 1,250", many, few, "<= 1.5")


def memory() -> Iterator[Ratio]:
    """Compare the memory per episode, with actions, of small and large batches."""

    def peak(count: int) -> float:
        actions = np.zeros((50, 7))
        items = [Item(str(n), group=str(n // GROUP), success=True, actions=actions)
                 for n in range(count)]  # fmt: skip
        options = EpisodeOptions(weights={"low_energy": 1.0}, clusters={})
        tracemalloc.start()
        score_episodes(items, options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / count

    few, many = peak(1024), peak(16_384)
    yield Ratio("bytes per episode, batch of 16,384; of 1,024", many, few, "<= 1.5")


if __name__ == "__main__":
    run({"http": http, "arithmetic": arithmetic, "clustering": clustering, "memory": memory})
