"""`make bench-code`: the speed of the code service, as ratios measured in one run.

All programs differ, so nothing is cached, except in the row of cached scores. Loopback only,
limited in count and time. Exits with 1 if a ratio misses its target.
"""

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from harness import (
    Ratio,
    Server,
    before,
    cache_hit_rates,
    cpu_seconds,
    medians_in_turns,
    post,
    redis_server,
    resident_mib,
    run,
    seconds_of,
    send,
    serving,
)
from items import TESTS, Item, numbers, printing, stdio, submission

from rewardfleet import CodeRequest, RewardFleet, code_request
from rewardfleet_server.system.threads import usable_cores

CALLERS = 4
ROUNDS, SECONDS = 9, 1.5
BURST = 500
#: Samples of a problem, and the asserts of its tests.
GROUP, FEW_ASSERTS, MANY_ASSERTS = 32, 100, 1000
#: Milliseconds of CPU time that SandboxFusion takes for such a test, measured separately.
SANDBOX_FUSION_CPU_MS = 21.5

#: The bare interpreter: the least that a test can cost without a warm fork.
BARE = [os.path.realpath(sys.executable), "-I", "-S", "-c"]


def bench(level: str) -> Iterator[Ratio]:
    print(f"\n{level}, {usable_cores()} cores")
    with service(level) as server:
        score_submissions(server.port)
        measured: list[Submissions] = []

        def rate() -> float:
            measured.append(score_submissions(server.port))
            return measured[-1].tests_per_s

        started = cpu_seconds(server.pid)
        rates = medians_in_turns(rate, bare_rate, rounds=ROUNDS)
        cpu_s = cpu_seconds(server.pid) - started
        cpu_ms = cpu_s * 1000 / sum(each.tests for each in measured)
        trivial_ms = trivial(server.port).ms
        bare_ms = statistics.median(seconds_of(bare_start) * 1000 for _ in range(30))
        burst_s, peak_mib, right = asyncio.run(burst(server))
        groups = {count: group_ms(server, count) for count in (FEW_ASSERTS, MANY_ASSERTS)}
    request = post("/score", submission(0))
    with service(level, cache_mb=16) as server:
        in_memory = cache_hit_rates(server, request, CodeRequest)
    with redis_server() as url, service(level, cache=url) as server:
        in_redis = cache_hit_rates(server, request, CodeRequest)
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in measured[-1].stages_ms.items())
    print(f"ms per test by stage: {stages}")
    print(f"{BURST} concurrent submissions took {burst_s:.1f} s, ", end="")
    print(f"{peak_mib:.0f} MiB at most in all processes")
    using_numpy = numpy_ms(level)
    for name, ours, baseline, limit in (
        ("tests/s, 20 per submission; `python -I -S`", *rates, ">= 4.5"),
        ("CPU ms per test; SandboxFusion", cpu_ms, SANDBOX_FUSION_CPU_MS, "<= 1/6"),
        ("p50 ms of a trivial program; of a bare start", trivial_ms, bare_ms, "<= 0.4"),
        *[("p50 ms, importing numpy; without imports", *using_numpy, "<= 1.5")] * bool(using_numpy),
        ("cached scores/s; an empty endpoint", *in_memory, ">= 0.6"),
        ("cached scores/s, in Redis only; the same", *in_redis, ">= 0.4"),
        ("right scores of concurrent submissions; all", right, BURST, ">= 1"),
        ("CPU ms, 32 samples, 100 asserts; one sample", *groups[FEW_ASSERTS], "<= 1/2"),
        ("CPU ms, 32 samples, 1000 asserts; one sample", *groups[MANY_ASSERTS], "<= 1/3"),
    ):
        yield Ratio(f"{level}: {name}", ours, baseline, limit)


def numpy_ms(level: str) -> tuple[float, float] | tuple[()]:
    """Print what preloading numpy costs all programs, and saves those that import it.

    Returns:
        The p50 of a program that imports numpy and of one that does not, without `--preload`; or
        nothing if programs cannot import it.
    """
    with service(level) as plain, service(level, preload=["numpy"]) as preloaded:
        [answer], _ = send(plain.port, [post("/score", stdio("import numpy", ("", "")))])
        if answer.score["score"] != 1:
            print("numpy: programs cannot import it; `rewardfleet packages build` installs it")
            return ()
        measurements = numpy_measurements(plain.port) + numpy_measurements(preloaded.port)
        for measure in measurements:  # so that jails have imported it
            measure()
        medians = medians_in_turns(*measurements, rounds=ROUNDS)
    for name, figures in (("preloaded by itself", medians[:3]), ("--preload", medians[3:])):
        fork_ms, without, using = figures
        print(
            f"numpy, {name}: fork {fork_ms:.2f} ms, one trivial program p50 {without:.2f} ms, "
            f"one that imports numpy {using:.2f} ms"
        )
    return medians[2], medians[1]


def numpy_measurements(port: int) -> list[Callable[[], float]]:
    return [
        lambda: trivial(port, count=30).fork_ms,
        lambda: trivial(port, count=30).ms,
        lambda: trivial(port, count=10, first_line="import numpy").ms,
    ]


class Submissions(NamedTuple):
    """What submissions of 20 tests took, with the milliseconds per test by stage."""

    tests: int
    tests_per_s: float
    stages_ms: dict[str, float]


def score_submissions(port: int) -> Submissions:
    chosen = itertools.takewhile(before(SECONDS), numbers)
    requests = (post("/score", submission(number)) for number in chosen)
    answers, seconds = send(port, requests, callers=CALLERS)
    tests = TESTS * len(answers)
    stages_ms = dict.fromkeys(("http", "queue", "fork", "run", "compare", "clean"), 0.0)
    for answer in answers:
        score = answer.score
        assert score["score"] == 1, score
        timing = score["timing_ms"]
        timing["http"] = answer.seconds * 1000 - timing["queue"] - timing["backend"]
        for stage in stages_ms:
            stages_ms[stage] += timing[stage] / tests
    return Submissions(tests, tests / seconds, stages_ms)


def bare_rate() -> float:
    """Return tests per second of bare interpreters, one started per test, on all cores at once."""
    is_before = before(SECONDS)

    def run(_: int) -> int:
        count = 0
        for number in itertools.takewhile(is_before, numbers):
            item = submission(number, 1)
            [case] = item["tests"]["cases"]
            command = [*BARE, item["revision"]]
            stdout = subprocess.check_output(command, input=case["stdin"], text=True)
            assert stdout == case["stdout"]
            count += 1
        return count

    cores = usable_cores()
    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        count = sum(pool.map(run, range(cores)))
    return count / (time.perf_counter() - started)


class Trivial(NamedTuple):
    ms: float
    fork_ms: float


def trivial(port: int, count: int = 100, first_line: str = "") -> Trivial:
    items = (printing(number, first_line) for number in range(count))
    answers, _ = send(port, (post("/score", item) for item in items))
    scores = [answer.score for answer in answers]
    assert all(score["score"] == 1 for score in scores)
    return Trivial(
        statistics.median(answer.seconds * 1000 for answer in answers),
        statistics.median(score["timing_ms"]["fork"] for score in scores),
    )


def bare_start() -> None:
    subprocess.run([*BARE, "print(1)"], stdout=subprocess.DEVNULL, check=True)


async def burst(server: Server) -> tuple[float, float, int]:
    """Send all through the client at once; return seconds, peak MiB, and the number of scores."""
    items = [submission(next(numbers), 5) for _ in range(BURST)]
    requests = [code_request(item["revision"], item["tests"]) for item in items]
    peak = 0.0
    async with RewardFleet(code=server.url) as fleet:
        started = time.perf_counter()
        running = asyncio.gather(*(fleet.code.score(r.revision, r.tests) for r in requests))
        while not running.done():
            peak = max(peak, resident_mib(server.pid))
            await asyncio.sleep(0.2)
        scores = await running
    took = time.perf_counter() - started
    return took, peak, sum(score.score == 1.0 for score in scores)


def group_ms(server: Server, asserts: int) -> list[float]:
    """Return the CPU ms of the service per sample: of one problem, and of a problem for each.

    Without its jails.
    """

    def measure(problems: int) -> float:
        firsts = [next(numbers) for _ in range(problems)]
        items = [plus_submission(asserts, firsts[n % problems], n) for n in range(GROUP)]
        requests = [post("/score", item) for item in items]

        def score() -> None:
            answers, _ = send(server.port, requests, callers=CALLERS)
            assert all(answer.score["score"] == 1 for answer in answers)

        return server.cpu_of(score, with_descendants=False) * 1000 / GROUP

    return medians_in_turns(lambda: measure(1), lambda: measure(GROUP), rounds=3)


def plus_submission(asserts: int, first: int, number: int) -> Item:
    """Return a right program, and a row of MBPP+ whose tests depend on `first`."""
    inputs = [[n, n + first] for n in range(asserts)]
    script = f"""
def assertion(out, exp, atol):
    assert out == exp
inputs = {inputs}
results = {[sum(pair) for pair in inputs]}
for inp, exp in zip(inputs, results):
    assertion(add(*inp), exp, 0)
"""
    program = f"def add(a, b):\n    return a + b + {number} - {number}"
    tests = {"kind": "dataset", "dataset": "auto", "row": {"task_id": "Mbpp/2", "test": script}}
    return {"revision": program, "tests": tests}


def service(level: str, **settings: object) -> AbstractContextManager[Server]:
    return serving("code", isolation=level, **{"cache_mb": 0, "cache": None, **settings})


if __name__ == "__main__":
    run({level: partial(bench, level) for level in ("bubblewrap", "landlock")})
