"""`make bench-code`: the speed of the code service, as ratios measured in one run.

Programs are all different and each is new; nothing is cached. Loopback only, bounded in count and
time. Exits with 1 where a ratio misses its bound.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from rewardfleet import CodeRequest, CodeScore, RewardFleet, code_request
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.logs import configure_logging
from rewardfleet_server.serve import Server

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, in_process, post, rate, run_empty, tell_port

TESTS = 20
CALLERS = 4
ROUNDS, SECONDS = 5, 1.5
BURST = 500
#: Milliseconds of CPU that SandboxFusion takes for such a test (see the README).
SANDBOX_FUSION_CPU_MS = 21.5
_TICKS = os.sysconf("SC_CLK_TCK")

#: The bare interpreter: what a test cannot cost less than without a warm fork.
BARE = [os.path.realpath(sys.executable), "-I", "-S", "-c"]


def main() -> int:
    levels = sys.argv[1:] or ["bubblewrap", "landlock"]
    held = [bench(level) for level in levels]
    return 0 if all(held) else 1


def bench(level: str) -> bool:
    print(f"\n{level}, {os.cpu_count()} cores")
    with service(level) as (port, pid):
        asyncio.run(submissions(port, seconds=1.5))
        rates, bares = [], []
        for _ in range(ROUNDS):  # in turns, so that a busy moment of the machine meets both
            before = cpu_seconds(pid)
            rate, stages, count = asyncio.run(submissions(port, seconds=SECONDS))
            cpu_ms = (cpu_seconds(pid) - before) / count * 1000
            rates.append(rate)
            bares.append(bare_rate(SECONDS))
        one = asyncio.run(trivial(port))
        bare = statistics.median(bare_start() for _ in range(30))
        burst_s, peak_mib, answered = asyncio.run(burst(port, pid))
    known, empty = known_answers(level)
    rows = [
        ("tests/s, 20 a submission; bare `python -I -S`", *medians(rates, bares), ">= 4"),
        ("CPU ms a test, all processes; SandboxFusion", cpu_ms, SANDBOX_FUSION_CPU_MS, "<= 1/6"),
        ("one trivial program, p50 ms; bare start", one * 1000, bare * 1000, "<= 2"),
        ("known answers/s; an empty FastAPI endpoint", known, empty, ">= 0.5"),
    ]
    print(f"{'measurement':50} {'ours':>9} {'other':>9} {'ratio':>7} {'bound':>7}")
    all_held = True
    for name, ours, other, bound in rows:
        ratio = ours / other
        limit = {
            ">= 4": ratio >= 4,
            "<= 1/6": ratio <= 1 / 6,
            "<= 2": ratio <= 2,
            ">= 0.5": ratio >= 0.5,
        }[bound]
        all_held = all_held and limit
        figures = f"{ours:9.2f} {other:9.2f} {ratio:7.2f} {bound:>7}"
        print(f"{name:50} {figures} {'' if limit else 'MISSED'}")
    print("ms a test by stage: " + ", ".join(f"{name} {ms:.2f}" for name, ms in stages.items()))
    print(f"{BURST} submissions at once: {answered} answered in {burst_s:.1f} s, ", end="")
    print(f"{peak_mib:.0f} MiB at most in all processes")
    return all_held and answered == BURST


def known_answers(level: str) -> tuple[float, float]:
    """Requests a second of answers known already, and of an empty endpoint with the same body."""
    request = post("/score", json.dumps(submission(0)).encode())
    with (
        service(level, cache_mb=16) as (port, _),
        in_process(run_empty, CodeRequest) as (empty_port, _),
    ):
        for place in (port, empty_port):
            asyncio.run(rate(place, request, callers=8, seconds=1))
        mine, other = [], []
        for _ in range(3):
            mine.append(asyncio.run(rate(port, request, callers=8, seconds=1.5)))
            other.append(asyncio.run(rate(empty_port, request, callers=8, seconds=1.5)))
    return medians(mine, other)


def medians(ours: list[float], other: list[float]) -> tuple[float, float]:
    return statistics.median(ours), statistics.median(other)


def submission(number: int, tests: int = TESTS) -> dict[str, object]:
    """A program that nobody has seen before, and its tests."""
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


_numbers = iter(range(10**9))


async def submissions(port: int, *, seconds: float) -> tuple[float, dict[str, float], int]:
    """Tests a second with a few callers, milliseconds a test by stage, and how many there were."""
    deadline = time.perf_counter() + seconds
    spent = dict.fromkeys(("http", "queue", "fork", "run", "judge", "clean"), 0.0)
    count = 0

    async def caller() -> None:
        nonlocal count
        connection = await Connection.open(port)
        while time.perf_counter() < deadline:
            request = post("/score", json.dumps(submission(next(_numbers))).encode())
            status, body, took = await connection.ask(request)
            score = json.loads(body)
            assert status == 200 and score["score"] == 1.0, body
            timing = score["timing_ms"]
            timing["http"] = took * 1000 - timing["queue"] - timing["backend"]
            for stage in spent:
                spent[stage] += timing[stage]
            count += TESTS
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    rate = count / (time.perf_counter() - started)
    return rate, {stage: ms / count for stage, ms in spent.items()}, count


def bare_rate(seconds: float) -> float:
    """Tests a second of a bare interpreter started for each, one for each core at a time."""
    deadline = time.perf_counter() + seconds
    counts = []

    def run() -> None:
        count = 0
        while time.perf_counter() < deadline:
            item = submission(next(_numbers), 1)
            case = item["tests"]["cases"][0]  # type: ignore[index] # made above
            done = subprocess.run(
                [*BARE, str(item["revision"])],
                input=case["stdin"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == case["stdout"]
            count += 1
        counts.append(count)

    started = time.perf_counter()
    threads = [threading.Thread(target=run) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


async def trivial(port: int) -> float:
    """Seconds of one trivial program, the median."""
    connection = await Connection.open(port)
    times = []
    for number in range(100):
        tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": f"{number}\n"}]}
        body = json.dumps({"revision": f"print({number})", "tests": tests}).encode()
        status, answer, seconds = await connection.ask(post("/score", body))
        assert status == 200 and json.loads(answer)["score"] == 1.0
        times.append(seconds)
    connection.close()
    return statistics.median(times)


def bare_start() -> float:
    started = time.perf_counter()
    subprocess.run([*BARE, "print(1)"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


async def burst(port: int, pid: int) -> tuple[float, float, int]:
    """All at once through the client: seconds, peak MiB of all the service's processes, answers."""
    requests = [request_of(submission(next(_numbers), 5)) for _ in range(BURST)]
    peak = 0.0
    async with RewardFleet(code=f"http://127.0.0.1:{port}") as fleet:

        async def ask(request: CodeRequest) -> CodeScore:
            return await fleet.code.score(request.revision, request.tests)

        started = time.perf_counter()
        working = asyncio.gather(*map(ask, requests))
        while not working.done():
            peak = max(peak, resident_mib(pid))
            await asyncio.sleep(0.2)
        scores = await working
    took = time.perf_counter() - started
    return took, peak, sum(score.score == 1.0 for score in scores)


def request_of(item: dict[str, object]) -> CodeRequest:
    return code_request(str(item["revision"]), item["tests"])  # type: ignore[arg-type] # made above


def family(pid: int) -> list[Path]:
    """A process and all that descend from it, in /proc."""
    parents = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                stat = (place / "stat").read_text()
            except OSError:
                continue
            parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return [Path(f"/proc/{each}") for each in found]


def cpu_seconds(pid: int) -> float:
    """CPU of a process and of its descendants, those that have ended included."""
    ticks = 0
    for place in family(pid):
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def resident_mib(pid: int) -> float:
    total = 0
    for place in family(pid):
        try:
            total += int((place / "statm").read_text().split()[1])
        except OSError:  # it has ended
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def service(level: str, cache_mb: int = 0) -> Iterator[tuple[int, int]]:
    """The code service in a process of its own."""
    with in_process(run_service, level, cache_mb) as place:
        yield place


def run_service(pipe: Pipe, level: str, cache_mb: int) -> None:
    # As it is run in earnest, with a log line for each request.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    configure_logging("info")
    uncached = {"cache_mb": cache_mb, "cache_file": None}
    settings = CodeSettings(port=0, isolation=level, **uncached)
    server = Server(create_app(settings), settings)
    tell_port(pipe, server)
    server.run()


if __name__ == "__main__":
    sys.exit(main())
