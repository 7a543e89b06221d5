"""The speed of the code service beside a SandboxFusion server, which runs on this machine.

    python tests/bench/sandbox_fusion.py PORT PID

Both get the same `/submit` requests of CTRL, in turns: programs that differ, so nothing is cached,
with 20 tests each. docs/trainers/ctrl.md says how that server was started.
"""

import itertools
import statistics
import sys

from harness import Server, before, cpu_seconds, post, send, serving
from items import TESTS, numbers, submission

CALLERS, ROUNDS, SECONDS = 4, 5, 4.0


def request() -> bytes:
    program = submission(next(numbers))
    cases = [
        {"input": {"stdin": each["stdin"]}, "output": {"stdout": each["stdout"]}}
        for each in program["tests"]["cases"]
    ]
    config = {
        "dataset_type": "CommonOJDataset", "language": "python", "run_timeout": 10,
        "provided_data": {"test": cases}, "extra": {"run_all_cases": True},
    }  # fmt: skip
    completion = f"```python\n{program['revision']}\n```"
    body = {"dataset": "code_contests", "id": 0, "completion": completion, "config": config}
    return post("/submit", body)


def measure(server: Server) -> tuple[float, float]:
    started = cpu_seconds(server.pid)
    requests = (request() for _ in itertools.takewhile(before(SECONDS), itertools.count()))
    answers, seconds = send(server.port, requests, callers=CALLERS)
    assert all(each.score["accepted"] for each in answers)
    tests = len(answers) * TESTS
    return tests / seconds, (cpu_seconds(server.pid) - started) * 1000 / tests


def main() -> None:
    with serving("code", isolation="bubblewrap", cache_mb=0, cache=None) as ours:
        servers = {"code service": ours, "SandboxFusion": Server(*map(int, sys.argv[1:3]))}
        rounds = [{name: measure(each) for name, each in servers.items()} for _ in range(ROUNDS)]
    for name in servers:
        rates, cpu = zip(*(row[name] for row in rounds), strict=True)
        median, least, most = statistics.median(rates), min(rates), max(rates)
        print(f"{name}: {median:.0f} tests/s ({least:.0f} to {most:.0f}), ", end="")
        print(f"{statistics.median(cpu):.1f} ms of CPU time per test")


if __name__ == "__main__":
    main()
