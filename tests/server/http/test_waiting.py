"""Requests that wait in line: what they cost, and how many there may be."""

import json
import re
import resource
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.http.app import most_waiting
from rewardfleet_server.serve import raise_descriptor_limit
from rewardfleet_server.testing import wait_until
from rewardfleet_server.tools.settings import ToolsSettings

from ..processes import service_process
from .raw import connect_to, head


@pytest.mark.serial
@pytest.mark.slow
def test_a_waiting_request_costs_20_kib_and_what_has_arrived_of_its_body():
    raise_descriptor_limit()
    program = "import time; time.sleep(60) #" + "x" * 60_000
    body = {"query": [program], "prompts": [""], "labels": [{"inputs": [""], "outputs": [""]}]}
    content = json.dumps(body).encode()
    flags = ("--workers", "1", "--set", "max_in_flight=1", "--set", "max_queue_depth=1")
    with service_process("code", *flags) as (process, url), ExitStack() as stack:
        status = Path(f"/proc/{process.pid}/status")

        def resident() -> int:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) * 1024

        def waiting() -> float:
            text = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
            return float(re.search(r"(?m)^rewardfleet_waiting_requests.* (\S+)$", text)[1])

        assert waiting() == 0
        before = resident()
        for _ in range(1502):
            connection = stack.enter_context(connect_to(url))
            connection.sendall(head(len(content), path="/get_reward") + content)
        wait_until(lambda: waiting() == 1500)
        assert resident() - before < 1502 * (22 * 1024 + len(content))


def test_a_line_fits_into_the_limit_of_open_files(caplog: pytest.LogCaptureFixture):
    settings = ToolsSettings()
    assert most_waiting(settings, 20_000) == 10_000
    assert most_waiting(settings, resource.RLIM_INFINITY) == 10_000
    assert not caplog.text
    assert most_waiting(settings, 5000) == 3400
    assert "at most 3400 requests wait in line instead of 10000" in caplog.text
    assert most_waiting(settings, 100) == 1
