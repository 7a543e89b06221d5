"""`make bench-gateway`: what the gateway adds to a trivial call, the same one each time.

One connection to the gateway and one to the service take turns, so that other load on the machine
affects both. Service, gateway and caller are three processes. Exits with 1 if the gateway adds
more than 0.3 ms at p50, or reaches less than 0.7 of the rate of the service with 32 connections. On
a machine that is busy otherwise, both are missed: three processes need two cores.

`make bench-ray` adds Ray Serve's proxy to the ways.
"""

import asyncio
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from harness import (
    Connection,
    Ratio,
    in_process,
    medians_in_turns,
    post,
    program_serving,
    rate,
    run,
    serving,
)
from items import ROOT, tool_answer

from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.server import OrderlyConnections
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica

#: A port and a request, by the name of the way.
Ways = dict[str, tuple[int, bytes]]


def gateway() -> Iterator[Ratio]:
    with service_and_gateway() as ways:
        direct, gateway = compare(ways, calls=3000, warm_up=200)
        direct_rate, gateway_rate = medians_in_turns(
            *(lambda way=way: rate(*way, callers=32, seconds=2) for way in ways.values()), rounds=5
        )
    yield Ratio("ms that the gateway adds at p50; 1 ms", gateway - direct, 1, "<= 0.3")
    yield Ratio("calls/s, 32 connections; direct", gateway_rate, direct_rate, ">= 0.7")


def ray() -> list[Ratio]:
    """Print what Ray Serve adds; it has no limit."""
    os.environ["REWARDFLEET_LOG_LEVEL"] = "warning"
    script = ROOT / "deploy" / "ray_serve.py"
    with (
        program_serving("/tools/readyz", script, "--only", "tools", "--port") as ray,
        service_and_gateway() as ways,
    ):
        compare({**ways, "Ray Serve": (ray.port, request("/tools/score"))}, calls=500, warm_up=100)
    return []


@contextmanager
def service_and_gateway() -> Iterator[Ways]:
    with serving("tools") as service, in_process(gateway_to, service.url) as gateway:
        yield {
            "direct": (service.port, request("/score")),
            "gateway": (gateway.port, request("/tools/score")),
        }


def request(path: str) -> bytes:
    text = tool_answer("x", {"name": "search", "parameters": {}})
    return post(path, {"response": text, "ground_truth": text})


def gateway_to(url: str) -> uvicorn.Server:
    replica = Replica("tools", url, is_ready=True)
    hosts = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)
    config = uvicorn.Config(
        OrderlyConnections(Gateway({"tools": [replica]}, hosts)),
        http="httptools",
        ws="none",
        port=0,
        log_config=None,
        proxy_headers=False,
        access_log=False,
    )
    return uvicorn.Server(config)


def compare(ways: Ways, *, calls: int, warm_up: int) -> list[float]:
    """Send the requests in turns; print percentiles and rates; return ms at p50."""

    async def milliseconds() -> dict[str, list[float]]:
        connections = {name: await Connection.open(port) for name, (port, _) in ways.items()}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(warm_up + calls):
            for name, connection in connections.items():
                taken[name].append((await connection.request(ways[name][1])).seconds * 1000)
        for connection in connections.values():
            connection.close()
        return taken

    medians: list[float] = []
    for name, taken in asyncio.run(milliseconds()).items():
        percentiles = statistics.quantiles(taken[warm_up:], n=100)
        medians.append(percentiles[49])
        one, many = (rate(*ways[name], callers=callers, seconds=2) for callers in (1, 32))
        print(
            f"{name:10} p50 {percentiles[49]:.3f} ms ({medians[-1] / medians[0]:.1f}x), "
            f"p90 {percentiles[89]:.3f} ms, p99 {percentiles[98]:.3f} ms; "
            f"1 connection {one:.0f}/s, 32 connections {many:.0f}/s"
        )
    return medians


if __name__ == "__main__":
    run({"gateway": gateway, "ray": ray})
