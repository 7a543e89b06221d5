"""`make bench-ray`: what Ray Serve adds to a trivial call, next to the gateway of `rewardfleet up`.

One connection each to the service, to the gateway and to Serve's proxy take turns, so that other
load on the machine affects all. The figures are ratios within one run.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from gateway import request, service_and_gateway
from harness import compare_ways, send

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

SCRIPT = Path(__file__).parent.parent.parent / "deploy" / "ray_serve.py"


def main() -> int:
    port = free_port()
    environment = {**os.environ, "REWARDFLEET_LOG_LEVEL": "warning"}
    command = [sys.executable, str(SCRIPT), "--only", "tools", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as serve:
        try:
            wait_until(lambda: answers(port), 60)
            with service_and_gateway() as ways:
                ways["Ray Serve"] = (port, request("/tools/score"))
                compare_ways(ways, calls=500, warm_up=100)
        finally:
            serve.terminate()
    return 0


def answers(port: int) -> bool:
    try:
        send(port, [request("/tools/score")])
    except (OSError, AssertionError, asyncio.IncompleteReadError, IndexError):  # it is not ready
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
