"""`make bench-outages [OTHER=FOLDER]`: calls that outages of 3, 10 and 60 s lose.

Replicas of the episode service are killed and started again, or frozen, while calls with a deadline
of 120 s begin at a steady rate: by the client, and by a caller that does not retry, behind the
gateway, a twentieth of them with 0.9 MiB. Of two replicas, the second one follows after half an
outage, so that for half of it there is none. With OTHER, the same calls are made with another
checkout. Exits with 1 if a call has no answer or a wrong one.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import httpx
from harness import Ratio, environment_of, run, running

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

CALLS, MAX_STEPS = 1700, 10_000
TIMEOUT_S = 120.0
#: Seconds of calls before an outage and after it.
BEFORE, AFTER = 1.0, 5.0
OUTAGES = 3.0, 10.0, 60.0
PADDING = b" " * 900 * 1024
SERVE = (sys.executable, "-m", "rewardfleet_server")


async def make_calls(kind: str, seconds: float, urls: list[str]) -> dict[str, int]:
    """Begin calls at a steady rate; return how many were right, wrong, or failed for which reason.

    Args:
        kind: `client`, or `plain`: aiohttp, which does not retry a POST, to one URL.
    """
    found: Counter[str] = Counter()
    if kind == "client":
        from rewardfleet import RewardFleet, episode_request

        fleet = RewardFleet(episode=urls, timeout_s=TIMEOUT_S)

        async def score(fields: dict[str, object], number: int) -> float:
            return (await fleet.episode.score(episode_request(**fields))).score
    else:
        # httpx takes quadratic time for so many calls at once.
        http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(TIMEOUT_S)
        )
        headers = {"content-type": "application/json", "x-request-timeout": f"{TIMEOUT_S:g}"}

        async def score(fields: dict[str, object], number: int) -> float:
            body = json.dumps(fields).encode() + (b"" if number % 20 else PADDING)
            async with http.post(f"{urls[0]}/score", data=body, headers=headers) as answer:
                if answer.status != 200:
                    raise ValueError(f"HTTP {answer.status}: {await answer.text()}")
                return float((await answer.json())["score"])

    async def call(number: int) -> None:
        await asyncio.sleep(number * seconds / CALLS)
        fields = {"uid": f"{number}", "kind": "efficiency", "success": 1, "steps": number,
                  "max_steps": MAX_STEPS}  # fmt: skip
        try:
            reward = await score(fields, number)
        except Exception as error:  # noqa: BLE001 - counted
            found[f"{type(error).__name__}: {str(error)[:200]}"] += 1
        else:
            found["right" if round((1 / reward - 1) * MAX_STEPS) == number else "wrong"] += 1

    await asyncio.gather(*map(call, range(CALLS)))
    if kind == "plain":
        await http.close()
    return found


def scenario(
    kind: str, build: Path | None, outage_s: float, number: signal.Signals, replicas: int
) -> Counter[str]:
    """Make calls during an outage; return what `make_calls` does."""
    environment = environment_of(build)
    with ExitStack() as stack:
        store = Path(stack.enter_context(TemporaryDirectory())) / "state"
        ports = [free_port() for _ in range(replicas)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        processes: dict[int, subprocess.Popen[bytes]] = {}

        def start(port: int) -> None:
            flags = ["--port", str(port), "--run-state", str(store)]
            command = [*SERVE, "serve", "episode", *flags]
            processes[port] = subprocess.Popen(
                command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )

        def end() -> None:
            for process in processes.values():
                process.kill()
                process.wait()

        stack.callback(end)
        for port, url in zip(ports, urls, strict=True):
            start(port)
            wait_until(partial(_is_ready, url), 120)
        targets = urls
        if kind == "plain":
            port = free_port()
            flags = [word for url in urls for word in ("--service", f"episode={url}")]
            command = [*SERVE, "gateway", "--port", str(port), *flags]
            page = f"http://127.0.0.1:{port}/readyz"
            stack.enter_context(running(command, page, env=environment))
            targets = [f"http://127.0.0.1:{port}/episode"]
        seconds = BEFORE + outage_s * (replicas + 1) / 2 + AFTER
        words = [sys.executable, __file__, "--calls", kind, str(seconds), *targets]
        caller = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
        stack.callback(caller.kill)
        time.sleep(BEFORE + 1.0)  # it has begun
        began = time.monotonic()
        events = []
        for place, port in enumerate(ports):
            first = began + place * outage_s / 2
            events += [(first, port, True), (first + outage_s, port, False)]
        for at, port, is_begin in sorted(events):
            time.sleep(max(at - time.monotonic(), 0))
            if is_begin:
                processes[port].send_signal(number)
            elif number == signal.SIGSTOP:
                processes[port].send_signal(signal.SIGCONT)
            else:
                processes[port].wait()
                start(port)
        output, _ = caller.communicate(timeout=TIMEOUT_S + seconds + 60)
        return Counter(json.loads(output))


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def outages(kind: str) -> Iterator[Ratio]:
    builds = {"this checkout": None}
    if other := os.environ.get("OTHER"):
        builds["the other one"] = Path(other).resolve()
    for name, build in builds.items():
        total: Counter[str] = Counter()
        for outage_s in OUTAGES:
            cases = [*product((signal.SIGKILL, signal.SIGSTOP), (1, 2))]
            with ThreadPoolExecutor(2) as pool:  # four are more than two cores serve
                results = pool.map(
                    partial(scenario, kind, build, outage_s), *zip(*cases, strict=True)
                )
                for (number, replicas), found in zip(cases, results, strict=True):
                    failures = {key: count for key, count in found.items() if key != "right"}
                    lost = CALLS - found["right"]
                    print(f"{name}, {kind}, {number.name}, {outage_s:g} s, {replicas} replicas: "
                          f"{lost} of {CALLS} lost {failures or ''}", flush=True)  # fmt: skip
                    total += found
        calls = CALLS * len(OUTAGES) * 4
        limit = ">= 1" if build is None else ">= 0"
        yield Ratio(f"right answers, {kind}, {name}; calls", total["right"], calls, limit)


PARTS: dict[str, Callable[[], Iterator[Ratio]]] = {
    kind: partial(outages, kind) for kind in ("client", "plain")
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--calls"]:
        _, _, of_kind, of_seconds, *of_urls = sys.argv
        answers: Awaitable[dict[str, int]] = make_calls(of_kind, float(of_seconds), of_urls)
        print(json.dumps(asyncio.run(answers)))  # type: ignore[arg-type] # a coroutine
    else:
        run(PARTS)
