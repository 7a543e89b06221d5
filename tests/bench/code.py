"""`make bench-code`: the speed of the code service, as ratios measured in one run.

All programs differ, so nothing is cached, except in the row of cached scores. Loopback only,
limited in count and time. Exits with 1 if a ratio misses its target.
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
from load import Connection, in_process, post, rate, run_empty, send_port

TESTS = 20
CALLERS = 4
ROUNDS, SECONDS = 9, 1.5
BURST = 500
#: Milliseconds of CPU time that SandboxFusion takes for such a test, measured separately.
SANDBOX_FUSION_CPU_MS = 21.5
_TICKS = os.sysconf("SC_CLK_TCK")

#: The bare interpreter: the least that a test can cost without a warm fork.
BARE = [os.path.realpath(sys.executable), "-I", "-S", "-c"]


def main() -> int:
    levels = sys.argv[1:] or ["bubblewrap", "landlock"]
    met = [bench(level) for level in levels]
    return 0 if all(met) else 1


def bench(level: str) -> bool:
    print(f"\n{level}, {os.cpu_count()} cores")
    with service(level) as (port, pid):
        asyncio.run(submissions(port, seconds=1.5))
        rates, bares = [], []
        for _ in range(ROUNDS):  # in turns, so that other load on the machine affects both
            before = cpu_seconds(pid)
            rate, stages, count = asyncio.run(submissions(port, seconds=SECONDS))
            cpu_ms = (cpu_seconds(pid) - before) / count * 1000
            rates.append(rate)
            bares.append(bare_rate(SECONDS))
        one, _ = asyncio.run(trivial(port))
        bare = statistics.median(bare_start() for _ in range(30))
        burst_s, peak_mib, answered = asyncio.run(burst(port, pid))
    cached, empty = cached_scores(level)
    rows = [
        ("tests/s, 20 per submission; bare `python -I -S`", *medians(rates, bares), ">= 4"),
        ("CPU ms per test, all processes; SandboxFusion", cpu_ms, SANDBOX_FUSION_CPU_MS, "<= 1/6"),
        ("one trivial program, p50 ms; bare start", one * 1000, bare * 1000, "<= 2"),
        ("cached scores/s; an empty FastAPI endpoint", cached, empty, ">= 0.5"),
    ]
    print(f"{'measurement':50} {'service':>9} {'other':>9} {'ratio':>7} {'target':>7}")
    all_met = True
    for name, measured, other, target in rows:
        ratio = measured / other
        is_met = {
            ">= 4": ratio >= 4,
            "<= 1/6": ratio <= 1 / 6,
            "<= 2": ratio <= 2,
            ">= 0.5": ratio >= 0.5,
        }[target]
        all_met = all_met and is_met
        figures = f"{measured:9.2f} {other:9.2f} {ratio:7.2f} {target:>7}"
        print(f"{name:50} {figures} {'' if is_met else 'MISSED'}")
    print("ms per test by stage: " + ", ".join(f"{name} {ms:.2f}" for name, ms in stages.items()))
    print(f"{BURST} concurrent submissions: {answered} answered in {burst_s:.1f} s, ", end="")
    print(f"{peak_mib:.0f} MiB at most in all processes")
    print_numpy(level)
    return all_met and answered == BURST


def print_numpy(level: str) -> None:
    """Print what preloading numpy costs all programs, and saves those that import it."""
    with service(level) as (plain, _):
        if not asyncio.run(runs(plain, "import numpy")):
            print("numpy: programs cannot import it; `rewardfleet packages build` installs it")
            return
        with service(level, preload=("numpy",)) as (preloaded, _):
            ports = {"not preloaded": plain, "preloaded": preloaded}
            rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ports}
            for _ in range(ROUNDS):  # in turns, so that other load on the machine affects both
                for name, port in ports.items():
                    without, fork_ms = asyncio.run(trivial(port, count=30))
                    using, _ = asyncio.run(trivial(port, count=10, first_line="import numpy"))
                    rounds[name].append((fork_ms, without * 1000, using * 1000))
    for name, figures in rounds.items():
        fork_ms, without, using = map(statistics.median, zip(*figures, strict=True))
        print(
            f"numpy {name}: fork {fork_ms:.2f} ms, one trivial program p50 {without:.2f} ms, "
            f"one that imports numpy {using:.2f} ms"
        )


async def runs(port: int, program: str) -> bool:
    """Return whether a program ends without an error."""
    connection = await Connection.open(port)
    tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": ""}]}
    body = json.dumps({"revision": program, "tests": tests}).encode()
    _, response, _ = await connection.request(post("/score", body))
    connection.close()
    return bool(json.loads(response)["score"] == 1.0)


def cached_scores(level: str) -> tuple[float, float]:
    """Return requests per second of cached scores, and of an empty endpoint with the same body."""
    request = post("/score", json.dumps(submission(0)).encode())
    with (
        service(level, cache_mb=16) as (port, _),
        in_process(run_empty, CodeRequest) as (empty_port, _),
    ):
        for each in (port, empty_port):
            asyncio.run(rate(each, request, callers=8, seconds=1))
        measured, other = [], []
        for _ in range(3):
            measured.append(asyncio.run(rate(port, request, callers=8, seconds=1.5)))
            other.append(asyncio.run(rate(empty_port, request, callers=8, seconds=1.5)))
    return medians(measured, other)


def medians(measured: list[float], other: list[float]) -> tuple[float, float]:
    return statistics.median(measured), statistics.median(other)


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


_numbers = iter(range(10**9))


async def submissions(port: int, *, seconds: float) -> tuple[float, dict[str, float], int]:
    """Return tests per second, milliseconds per test by stage, and the number of tests."""
    deadline = time.perf_counter() + seconds
    spent = dict.fromkeys(("http", "queue", "fork", "run", "compare", "clean"), 0.0)
    count = 0

    async def caller() -> None:
        nonlocal count
        connection = await Connection.open(port)
        while time.perf_counter() < deadline:
            request = post("/score", json.dumps(submission(next(_numbers))).encode())
            status, body, took = await connection.request(request)
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
    """Return tests per second of bare interpreters, one started per test, on all cores at once."""
    deadline = time.perf_counter() + seconds
    counts = []

    def run() -> None:
        count = 0
        while time.perf_counter() < deadline:
            item = submission(next(_numbers), 1)
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
        counts.append(count)

    started = time.perf_counter()
    threads = [threading.Thread(target=run) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


async def trivial(port: int, count: int = 100, first_line: str = "") -> tuple[float, float]:
    """Return the median seconds of one trivial program, and its milliseconds to fork."""
    connection = await Connection.open(port)
    times, fork_ms = [], []
    for number in range(count):
        tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": f"{number}\n"}]}
        body = json.dumps({"revision": f"{first_line}\nprint({number})", "tests": tests}).encode()
        status, response, seconds = await connection.request(post("/score", body))
        score = json.loads(response)
        assert status == 200 and score["score"] == 1.0
        times.append(seconds)
        fork_ms.append(score["timing_ms"]["fork"])
    connection.close()
    return statistics.median(times), statistics.median(fork_ms)


def bare_start() -> float:
    started = time.perf_counter()
    subprocess.run([*BARE, "print(1)"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


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


def family(pid: int) -> list[Path]:
    """Return the folders in /proc of a process and its descendants."""
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text()
            except OSError:
                continue
            parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return [Path(f"/proc/{each}") for each in found]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    ticks = 0
    for process in family(pid):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def resident_mib(pid: int) -> float:
    total = 0
    for process in family(pid):
        try:
            total += int((process / "statm").read_text().split()[1])
        except OSError:  # it has ended
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def service(
    level: str, cache_mb: int = 0, preload: tuple[str, ...] = ()
) -> Iterator[tuple[int, int]]:
    """Run the code service in another process; yield port and pid."""
    with in_process(run_service, level, cache_mb, preload) as port_and_pid:
        yield port_and_pid


def run_service(pipe: Pipe, level: str, cache_mb: int, preload: tuple[str, ...]) -> None:
    # As in production, with a log line per request.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    configure_logging("info")
    uncached = {"cache_mb": cache_mb, "cache_file": None}
    settings = CodeSettings(port=0, isolation=level, preload=list(preload), **uncached)
    server = Server(create_app(settings), settings)
    send_port(pipe, server)
    server.run()


if __name__ == "__main__":
    sys.exit(main())
