"""`make bench-code`: the speed of the code service, as ratios measured in one run.

All programs differ, so nothing is cached, except in the row of cached scores. Loopback only,
limited in count and time. Exits with 1 if a ratio misses its target.
"""

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NamedTuple

from harness import (
    Ratio,
    before,
    cache_hit_rates,
    cpu_seconds,
    medians_in_turns,
    post,
    redis_server,
    report,
    resident_mib,
    seconds_of,
    send,
    serving,
)

from rewardfleet import CodeRequest, CodeScore, RewardFleet, code_request
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.system.threads import usable_cores

TESTS = 20
CALLERS = 4
ROUNDS, SECONDS = 9, 1.5
BURST = 500
#: Samples of a problem, and the asserts of its tests.
GROUP, FEW_ASSERTS, MANY_ASSERTS = 32, 100, 1000
#: Milliseconds of CPU time that SandboxFusion takes for such a test, measured separately.
SANDBOX_FUSION_CPU_MS = 21.5

#: The bare interpreter: the least that a test can cost without a warm fork.
BARE = [os.path.realpath(sys.executable), "-I", "-S", "-c"]


def main() -> int:
    return max([bench(level) for level in sys.argv[1:] or ["bubblewrap", "landlock"]])


def bench(level: str) -> int:
    print(f"\n{level}, {usable_cores()} cores")
    with service(level) as (port, pid):
        score_submissions(port)
        measured: list[Submissions] = []

        def rate() -> float:
            measured.append(score_submissions(port))
            return measured[-1].tests_per_s

        started = cpu_seconds(pid)
        tests_per_s, bare_per_s = medians_in_turns(rate, bare_rate, rounds=ROUNDS)
        cpu_ms = (cpu_seconds(pid) - started) * 1000 / sum(each.tests for each in measured)
        trivial_ms = trivial(port).ms
        bare_ms = statistics.median(seconds_of(bare_start) * 1000 for _ in range(30))
        burst_s, peak_mib, right = asyncio.run(burst(port, pid))
        few, many = (group_ms(port, pid, asserts) for asserts in (FEW_ASSERTS, MANY_ASSERTS))
    request = score_request(submission(0))
    with service(level, cache_mb=16) as served:
        cached, empty = cache_hit_rates(served, request, CodeRequest)
    with redis_server() as url, service(level, cache=url) as served:
        in_redis, empty_then = cache_hit_rates(served, request, CodeRequest)
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in measured[-1].stages_ms.items())
    print(f"ms per test by stage: {stages}")
    print(f"{BURST} concurrent submissions took {burst_s:.1f} s, ", end="")
    print(f"{peak_mib:.0f} MiB at most in all processes")
    print_numpy(level)
    return report(
        [
            Ratio("tests/s, 20 per submission; `python -I -S`", tests_per_s, bare_per_s, ">= 4.5"),
            Ratio("CPU ms per test; SandboxFusion", cpu_ms, SANDBOX_FUSION_CPU_MS, "<= 1/6"),
            Ratio("p50 ms of a trivial program; of a bare start", trivial_ms, bare_ms, "<= 0.4"),
            Ratio("cached scores/s; an empty endpoint", cached, empty, ">= 0.6"),
            Ratio("cached scores/s, in Redis only; the same", in_redis, empty_then, ">= 0.4"),
            Ratio("right scores of concurrent submissions; all", right, BURST, ">= 1"),
            Ratio("service's CPU ms, 32 samples, 100 asserts; one sample", *few, "<= 1/2"),
            Ratio("service's CPU ms, 32 samples, 1000 asserts; one sample", *many, "<= 1/3"),
        ]
    )


def print_numpy(level: str) -> None:
    """Print what preloading numpy costs all programs, and saves those that import it."""
    with service(level) as (plain, _):
        tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": ""}]}
        [answer], _ = send(plain, [score_request({"revision": "import numpy", "tests": tests})])
        if json.loads(answer.body)["score"] != 1:
            print("numpy: programs cannot import it; `rewardfleet packages build` installs it")
            return
        with service(level, preload=["numpy"]) as (preloaded, _):
            measurements = numpy_measurements(plain) + numpy_measurements(preloaded)
            medians = medians_in_turns(*measurements, rounds=ROUNDS)
    for name, figures in (("not preloaded", medians[:3]), ("preloaded", medians[3:])):
        fork_ms, without, using = figures
        print(
            f"numpy {name}: fork {fork_ms:.2f} ms, one trivial program p50 {without:.2f} ms, "
            f"one that imports numpy {using:.2f} ms"
        )


def numpy_measurements(port: int) -> list[Callable[[], float]]:
    return [
        lambda: trivial(port, count=30).fork_ms,
        lambda: trivial(port, count=30).ms,
        lambda: trivial(port, count=10, first_line="import numpy").ms,
    ]


def score_request(body: dict[str, object]) -> bytes:
    return post("/score", json.dumps(body).encode())


def submission(number: int, tests: int = TESTS) -> dict[str, object]:
    """Return a program that differs for each number, and its tests."""
    program = f"""
import sys
def solve_{number}(values):
    total = {number % 7}
    for index, value in enumerate(values):
        total += value * (index + 1) if value % 2 else -value
    return total
values = list(map(int, sys.stdin.read().split()))
print(solve_{number}(values))
"""
    cases = []
    for test in range(tests):
        values = [(number * 31 + test * 17 + index * 7) % 1000 for index in range(10)]
        total = number % 7
        for index, value in enumerate(values):
            total += value * (index + 1) if value % 2 else -value
        cases.append({"stdin": " ".join(map(str, values)) + "\n", "stdout": f"{total}\n"})
    return {"revision": program, "tests": {"kind": "stdio", "cases": cases}}


_numbers = itertools.count()


class Submissions(NamedTuple):
    """What submissions of 20 tests took, with the milliseconds per test by stage."""

    tests: int
    tests_per_s: float
    stages_ms: dict[str, float]


def score_submissions(port: int) -> Submissions:
    numbers = itertools.takewhile(before(SECONDS), _numbers)
    requests = (score_request(submission(number)) for number in numbers)
    answers, seconds = send(port, requests, callers=CALLERS)
    tests = TESTS * len(answers)
    stages_ms = dict.fromkeys(("http", "queue", "fork", "run", "compare", "clean"), 0.0)
    for answer in answers:
        score = json.loads(answer.body)
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
        for number in itertools.takewhile(is_before, _numbers):
            item = submission(number, 1)
            case = item["tests"]["cases"][0]  # type: ignore[index] # from `submission`
            done = subprocess.run(
                [*BARE, str(item["revision"])],
                input=case["stdin"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == case["stdout"]
            count += 1
        return count

    cores = usable_cores()
    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        count = sum(pool.map(run, range(cores)))
    return count / (time.perf_counter() - started)


class Trivial(NamedTuple):
    """Medians of trivial programs, one after another."""

    ms: float
    fork_ms: float


def trivial(port: int, count: int = 100, first_line: str = "") -> Trivial:
    requests = []
    for number in range(count):
        tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": f"{number}\n"}]}
        program = f"{first_line}\nprint({number})"
        requests.append(score_request({"revision": program, "tests": tests}))
    answers, _ = send(port, requests)
    scores = [json.loads(answer.body) for answer in answers]
    assert all(score["score"] == 1 for score in scores)
    return Trivial(
        statistics.median(answer.seconds * 1000 for answer in answers),
        statistics.median(score["timing_ms"]["fork"] for score in scores),
    )


def bare_start() -> None:
    subprocess.run([*BARE, "print(1)"], stdout=subprocess.DEVNULL, check=True)


async def burst(port: int, pid: int) -> tuple[float, float, int]:
    """Send all through the client at once; return seconds, peak MiB, and the number of scores."""
    requests = [request_of(submission(next(_numbers), 5)) for _ in range(BURST)]
    peak = 0.0
    async with RewardFleet(code=f"http://127.0.0.1:{port}") as fleet:

        async def score(request: CodeRequest) -> CodeScore:
            return await fleet.code.score(request.revision, request.tests)

        started = time.perf_counter()
        running = asyncio.gather(*map(score, requests))
        while not running.done():
            peak = max(peak, resident_mib(pid))
            await asyncio.sleep(0.2)
        scores = await running
    took = time.perf_counter() - started
    return took, peak, sum(score.score == 1.0 for score in scores)


def request_of(item: dict[str, object]) -> CodeRequest:
    return code_request(str(item["revision"]), item["tests"])  # type: ignore[arg-type] # from `submission`


def group_ms(port: int, pid: int, asserts: int) -> list[float]:
    """Return the CPU ms of the service per sample: of one problem, and of a problem for each."""

    def measure(problems: int) -> float:
        firsts = [next(_numbers) for _ in range(problems)]
        bodies = (plus_submission(asserts, firsts[n % problems], n) for n in range(GROUP))
        requests = [score_request(body) for body in bodies]
        started = cpu_seconds(pid, with_descendants=False)
        answers, _ = send(port, requests, callers=CALLERS)
        assert all(json.loads(answer.body)["score"] == 1 for answer in answers)
        return (cpu_seconds(pid, with_descendants=False) - started) * 1000 / GROUP

    return medians_in_turns(lambda: measure(1), lambda: measure(GROUP), rounds=3)


def plus_submission(asserts: int, first: int, number: int) -> dict[str, object]:
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


def service(
    level: str,
    *,
    cache_mb: int = 0,
    cache: str | None = None,
    preload: list[str] | None = None,
) -> AbstractContextManager[tuple[int, int]]:
    settings = CodeSettings(
        port=0, isolation=level, preload=preload or [], cache_mb=cache_mb, cache=cache
    )
    return serving(create_app, settings)


if __name__ == "__main__":
    sys.exit(main())
