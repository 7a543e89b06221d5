"""The speed of the code service beside a SandboxFusion server, which runs on this machine.

    python tests/bench/sandbox_fusion.py PORT PID

Both get the same `/submit` requests of CTRL, in turns: programs that differ, so nothing is cached,
with 20 tests each. docs/trainers/ctrl.md says how that server was started.
"""

import itertools
import json
import statistics
import sys
from code import TESTS, service, submission

from harness import before, cpu_seconds, post, send

CALLERS, ROUNDS, SECONDS = 4, 5, 4.0

numbers = itertools.count()


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
    return post("/submit", json.dumps(body).encode())


def measure(port: int, pid: int) -> tuple[float, float]:
    """Return tests per second, and milliseconds of CPU time per test."""
    started = cpu_seconds(pid)
    requests = (request() for _ in itertools.takewhile(before(SECONDS), itertools.count()))
    answers, seconds = send(port, requests, callers=CALLERS)
    assert all(json.loads(each.body)["accepted"] for each in answers)
    tests = len(answers) * TESTS
    return tests / seconds, (cpu_seconds(pid) - started) * 1000 / tests


def main() -> int:
    other = (int(sys.argv[1]), int(sys.argv[2]))
    with service("bubblewrap") as ours:
        names = {"code service": ours, "SandboxFusion": other}
        rows = [{name: measure(*each) for name, each in names.items()} for _ in range(ROUNDS)]
    for name in names:
        rates, cpu = zip(*(row[name] for row in rows), strict=True)
        median, least, most = statistics.median(rates), min(rates), max(rates)
        print(f"{name}: {median:.0f} tests/s ({least:.0f} to {most:.0f}), ", end="")
        print(f"{statistics.median(cpu):.1f} ms of CPU time per test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
