"""The episode service with its run state in a file, or in a real Redis server."""

import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from rewardfleet_server.testing import wait_until

from ..conftest import RedisServer
from ..http.test_requests import metric
from .conftest import served_episodes
from .test_service import add_member, four_items

ADAPT = {"run": "a", "step": 1, "success_rate": 0.8, "target_success_rate": 0.5}


def adapt(service: httpx.Client, step: int = 1) -> httpx.Response:
    return service.post("/temperatures", json={"n": 2, "adapt": {**ADAPT, "step": step}})


def normalize(service: httpx.Client, group: str = "a") -> httpx.Response:
    options = {"options": {"normalize": "running"}, "run": "a", "step": 1}
    return service.post("/score/batch", json={"items": four_items(group), **options})


CALLS: list[Callable[[httpx.Client], httpx.Response]] = [
    adapt,
    normalize,
    lambda service: add_member(service, four_items()[0]),
]


def failures(service: httpx.Client) -> list[httpx.Response]:
    """Send every call that needs run state, at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(CALLS)) as pool:
        responses = list(pool.map(lambda call: call(service), CALLS))
    for response in responses:
        problem = response.json()
        assert (response.status_code, problem["kind"]) == (503, "unavailable"), problem
        assert problem["retryable"] and problem["retry_after"] == 1
    return responses


@pytest.fixture
def replicas(run_state: str) -> Iterator[list[httpx.Client]]:
    """Two services that share a store."""
    fields = {"run_state": run_state, "replicas": 2}
    with served_episodes(**fields) as one, served_episodes(**fields) as other:
        yield [one, other]


@pytest.mark.usefixtures("patient")
def test_replicas_share_the_state_of_a_run(replicas: list[httpx.Client]):
    """Members of a group may be sent to any replica, and all get the same results."""
    one, other = replicas
    assert not add_member(one, four_items()[0]).json()["released"]
    assert add_member(other, four_items()[1]).json()["missing"] == 1
    assert add_member(one, four_items()[2]).json()["released"]
    results = [add_member(each, four_items()[1]).json()["result"] for each in (one, other)]
    assert results[0] == results[1]
    assert normalize(one, "a").json()["running"]["count"] == 4
    assert normalize(other, "b").json()["running"]["count"] == 8
    assert adapt(one).json() == adapt(other).json() != adapt(one, step=2).json()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_group_that_replicas_complete_at_the_same_time_is_released_and_counted_once(
    replicas: list[httpx.Client],
):
    items = [item for group in range(8) for item in four_items(f"g{group}", temperature=1.0)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            calls = [(each, item) for item in items for each in replicas]
            list(pool.map(lambda call: add_member(*call, group_size=4), calls))
    assert sum(metric(each, "rewardfleet_episodes_total{") for each in replicas) == len(items)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_without_redis_calls_answer_503_and_count_nothing(tmp_path: Path):
    """Afterwards they continue with the state that was stored before."""
    with RedisServer(tmp_path) as server, served_episodes(run_state=server.url) as service:
        first = adapt(service).json()
        assert normalize(service).json()["running"]["count"] == 4
        add_member(service, four_items()[0])
        server.stop()
        failures(service)
        wait_until(lambda: service.get("/readyz").status_code == 503)
        assert service.post("/temperatures", json={"n": 2}).status_code == 200, "needs no state"
        server.start()
        assert adapt(service).json() == first
        assert normalize(service).json()["running"]["count"] == 4
        assert normalize(service, "b").json()["running"]["count"] == 8
        assert add_member(service, four_items()[0]).json()["missing"] == 2
