"""`make bench-ray`: what Ray Serve adds to a trivial call, next to the gateway of `rewardfleet up`.

One connection each to the service, to the gateway and to Serve's proxy take turns, so that other
load on the machine affects all. The figures are ratios within one run.
"""

import asyncio
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gateway import request, run_gateway
from load import Connection, in_process, rate, run_tools

from rewardfleet_server.fleet.settings import free_port
from rewardfleet_server.testing import wait_until

SCRIPT = Path(__file__).parent.parent.parent / "deploy" / "ray_serve.py"
CALLS, WARM_UP = 500, 100


def main() -> int:
    port = free_port()
    environment = {**os.environ, "REWARDFLEET_LOG_LEVEL": "warning"}
    command = [sys.executable, str(SCRIPT), "--only", "tools", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as serve:
        try:
            wait_until(lambda: asyncio.run(_answers(port)), 60)
            with (
                in_process(run_tools) as (service, _),
                in_process(run_gateway, service) as (gateway, _),
            ):
                asyncio.run(compare({"direct": service, "gateway": gateway, "Ray Serve": port}))
        finally:
            serve.terminate()
    return 0


async def compare(ports: dict[str, int]) -> None:
    """Print p50 and p99 of one connection, and the rate of 32, of each way."""
    ways = {}
    for name, port in ports.items():
        ways[name] = await Connection.open(port), request("" if name == "direct" else "/tools")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UP + CALLS):
        for name, (connection, content) in ways.items():
            status, body, taken = await connection.request(content)
            assert status == 200, body
            seconds[name].append(taken)
    first = 0.0
    for name, taken in seconds.items():
        ranks = [1000 * each for each in statistics.quantiles(taken[WARM_UP:], n=100)]
        per_second = await rate(ports[name], ways[name][1], callers=32, seconds=3)
        first = first or ranks[49]
        print(
            f"{name:10} p50 {ranks[49]:6.2f} ms ({ranks[49] / first:.1f}x), "
            f"p99 {ranks[98]:.2f} ms, 32 connections {per_second:.0f}/s"
        )


async def _answers(port: int) -> bool:
    try:
        connection = await Connection.open(port)
        status, _, _ = await connection.request(request("/tools"))
    except (OSError, asyncio.IncompleteReadError, IndexError):  # it is not ready
        return False
    return status == 200


if __name__ == "__main__":
    sys.exit(main())
