"""More requests than a service admits, and services that end, by the clients of other projects.

None of these clients can be relied on to repeat a request, and verl's takes each failure for a
wrong answer. So each right program must get its reward.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewardfleet_server.testing import wait_until

from ..chaos.fleet import fleet_up
from ..server.processes import service_process
from .load import nemo_gym, openenv, openrlhf, verl
from .trainers import needs_clients

pytestmark = [needs_clients, pytest.mark.slow, pytest.mark.timeout(600)]

Load = Callable[[str, int], dict[str, int]]

#: Client, path, and how many requests: more than the 576 that a service admits.
ROUTES = [(verl, "/run_code", 800), (openrlhf, "/get_reward", 1000)]
ROUTES += [(nemo_gym, "", 1200), (openenv, "", 700)]


@pytest.mark.slice
@pytest.mark.parametrize(("load", "path", "number"), ROUTES)
def test_more_requests_than_are_admitted_are_all_scored(load: Load, path: str, number: int):
    with service_process("code") as (_, url):
        assert load(url + path, number) == {"1.0": number}


@pytest.mark.parametrize(("load", "path"), [(verl, "/run_code"), (openrlhf, "/get_reward")])
def test_five_thousand_requests_are_all_scored(load: Load, path: str):
    with service_process("code") as (_, url):
        assert load(url + path, 5000) == {"1.0": 5000}


def test_gym_each_sample_of_a_service_without_a_queue_is_scored_or_masked():
    limits = ("--set", "max_in_flight=1", "--set", "max_queue_depth=2")
    with service_process("code", *limits) as (_, url):
        found = nemo_gym(url, 1200)
    assert sum(found.values()) == 1200
    assert found.keys() <= {"1.0", "masked"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize(("load", "path"), [each[:2] for each in ROUTES])
def test_no_request_behind_the_gateway_is_lost_when_its_replica_ends(
    tmp_path: Path, load: Load, path: str, number: signal.Signals
):
    with fleet_up(tmp_path, 'only = ["code"]\n') as fleet, ThreadPoolExecutor(1) as pool:
        count = 1000 if load is openenv else 1500  # OpenEnv's are open WebSockets, at most 1,024
        found = pool.submit(load, f"{fleet.url}/code{path}", count)
        wait_until(lambda: fleet.replicas()[0]["outstanding"] > 0, 60)
        os.kill(fleet.services()[0], number)
        assert found.result() == {"1.0": count}
        assert fleet.replicas()[0]["restarts"] == 1
