"""`make bench-gateway`: what the gateway adds to a trivial call, the same one each time.

One connection to the gateway and one to the service take turns, so that other load on the machine
affects both. Service, gateway and caller are three processes. Exits with 1 if the gateway adds
more than 0.3 ms at p50, or reaches less than 0.7 of the rate of the service with 32 connections. On
a machine that is busy otherwise, both are missed: three processes need two cores.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from harness import (
    Ratio,
    compare_ways,
    in_process,
    medians_in_turns,
    post,
    rate,
    report,
    serving,
)

from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.connections import OrderlyConnections
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up.gateway import Gateway
from rewardfleet_server.up.replicas import Replica


def main() -> int:
    with service_and_gateway() as ways:
        direct, gateway = compare_ways(ways, calls=3000, warm_up=200)
        direct_rate, gateway_rate = medians_in_turns(
            *(lambda way=way: rate(*way, callers=32, seconds=2) for way in ways.values()), rounds=5
        )
    return report(
        [
            Ratio("ms that the gateway adds at p50; 1 ms", gateway - direct, 1, "<= 0.3"),
            Ratio("calls/s, 32 connections; direct", gateway_rate, direct_rate, ">= 0.7"),
        ]
    )


@contextmanager
def service_and_gateway() -> Iterator[dict[str, tuple[int, bytes]]]:
    """Run the tools service and a gateway; yield the port and the request of both ways."""
    with (
        serving(create_app, ToolsSettings(port=0)) as (service, _),
        in_process(gateway_to, service) as (gateway, _),
    ):
        yield {
            "direct": (service, request("/score")),
            "gateway": (gateway, request("/tools/score")),
        }


def request(path: str) -> bytes:
    text = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
    return post(path, json.dumps({"response": text, "ground_truth": text}).encode())


def gateway_to(service_port: int) -> uvicorn.Server:
    replica = Replica("tools", f"http://127.0.0.1:{service_port}", is_ready=True)
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


if __name__ == "__main__":
    sys.exit(main())
