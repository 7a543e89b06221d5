"""`make bench-gateway`: what the gateway adds to a trivial call.

One connection to the gateway and one to the service take turns, so that other load on the machine
affects both. Service, gateway and caller are three processes. Exits with 1 if the gateway adds
1 ms or more at p50.
"""

import asyncio
import json
import statistics
import sys
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import uvicorn

from rewardfleet_server.allowed_hosts import AllowedHosts
from rewardfleet_server.fleet.gateway import Gateway
from rewardfleet_server.fleet.replicas import Replica
from rewardfleet_server.http.protocol import BoundedHttpProtocol

sys.path.insert(0, str(Path(__file__).parent))
from load import Connection, in_process, post, rate, run_tools, send_port

CALLS, WARM_UP = 3000, 200
LIMIT_MS = 1.0


def main() -> int:
    with (
        in_process(run_tools) as (service, _),
        in_process(run_gateway, service) as (gateway, _),
    ):
        added = asyncio.run(compare(service, gateway))
        for callers in (1, 32):
            rates = [
                asyncio.run(rate(port, request(prefix), callers=callers, seconds=2))
                for port, prefix in ((service, ""), (gateway, "/tools"))
            ]
            print(f"{callers} connections: {rates[0]:.0f}/s direct, {rates[1]:.0f}/s through it")
    print(f"added at p50: {added:.3f} ms (< {LIMIT_MS:g}) {'' if added < LIMIT_MS else 'MISSED'}")
    return 0 if added < LIMIT_MS else 1


async def compare(service: int, gateway: int) -> float:
    """Return the milliseconds that the gateway adds at p50."""
    ways = {
        "direct": (await Connection.open(service), request("")),
        "gateway": (await Connection.open(gateway), request("/tools")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UP + CALLS):
        for name, (connection, content) in ways.items():
            status, body, taken = await connection.request(content)
            assert status == 200, body
            seconds[name].append(taken)
    for connection, _ in ways.values():
        connection.close()
    p50 = {}
    for name, taken in seconds.items():
        ranks = [1000 * each for each in statistics.quantiles(taken[WARM_UP:], n=100)]
        p50[name] = ranks[49]
        print(f"{name}: p50 {ranks[49]:.3f} ms, p90 {ranks[89]:.3f} ms, p99 {ranks[98]:.3f} ms")
    return p50["gateway"] - p50["direct"]


def request(prefix: str) -> bytes:
    text = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
    body = json.dumps({"response": text, "ground_truth": text}).encode()
    return post(f"{prefix}/score", body)


def run_gateway(pipe: Pipe, service_port: int) -> None:
    replica = Replica("tools", f"http://127.0.0.1:{service_port}", is_ready=True)
    config = uvicorn.Config(
        Gateway({"tools": [replica]}, AllowedHosts([], listens_on="127.0.0.1", has_keys=False)),
        http=BoundedHttpProtocol,
        ws="none",
        port=0,
        log_config=None,
        proxy_headers=False,
        access_log=False,
    )
    server = uvicorn.Server(config)
    send_port(pipe, server)
    # As in `rewardfleet up`.
    asyncio.run(server.serve())


if __name__ == "__main__":
    sys.exit(main())
