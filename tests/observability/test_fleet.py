"""A real Prometheus scrapes the real fleet under load, and sees a service die."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from rewardfleet_server.testing import wait_until

from ..server.processes import descendants
from .conftest import Monitored
from .load import run_load
from .prometheus import Prometheus
from .test_dashboards import DASHBOARDS, panels

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.slice, pytest.mark.timeout(600)]

#: What Grafana inserts: four times the interval of scrapes.
RATE_INTERVAL = "4s"
#: Metrics of judges with a calibration, which this fleet has not.
CALIBRATED = ("rewardfleet_drift_alarms_total", "rewardfleet_drift_evidence",
              "rewardfleet_task_results_total")  # fmt: skip
#: Metrics of what the load does not cause: kills from outside, a lack of memory, requests in line,
#: and, as one hit in a thousand is audited, audits.
NOT_PROVOKED = (
    "rewardfleet_cache_audits_total",
    "rewardfleet_program_kills_total",
    "rewardfleet_check_kills_total",
    "rewardfleet_memory_waits_total",
    "rewardfleet_waiting_requests",
)


async def test_every_query_returns_data_of_the_fleet_under_load(monitored: Monitored):
    started, prometheus = time.time(), monitored.prometheus
    load = asyncio.create_task(run_load(monitored.url))
    services = descendants(monitored.pid, depth=1)
    try:
        _kill(pid for service in services for pid in descendants(service, depth=1))  # jails
        restarts = "sum(rewardfleet_jail_restarts_total) > 0"
        await asyncio.to_thread(wait_until, lambda: prometheus.value(restarts) is not None, 60)
        _kill(services)
        missing = await _execute(prometheus, load, started)
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    assert not missing, "\n".join(" | ".join(each) for each in sorted(missing))
    _check_rules(prometheus)


def _check_rules(prometheus: Prometheus) -> None:
    """Check that the alert rules are evaluated, and that all metrics in them exist."""
    (group,) = prometheus.get("/rules")["groups"]
    names = {*prometheus.get("/label/__name__/values"), *CALIBRATED}
    for rule in group["rules"]:
        assert rule["health"] == "ok", rule
        assert set(re.findall(r"\b(?:rewardfleet|process)_\w+", rule["query"])) <= names, rule


def _kill(pids: Iterable[int]) -> None:
    """Kill processes, which are started again."""
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)


async def _execute(
    prometheus: Prometheus, load: asyncio.Task[None], started: float
) -> set[tuple[str, str, str]]:
    """Execute all queries until each has data; return those without, after 240 s."""
    missing = {
        (name, panel["title"], target["expr"])
        for name, dashboard in DASHBOARDS.items()
        for panel in panels(dashboard)
        for target in panel["targets"]
        if not any(metric in target["expr"] for metric in CALIBRATED)
    }
    count = len(missing)
    while missing and time.time() < started + 240:
        assert not load.done(), load.exception()
        await asyncio.sleep(1)
        for each in sorted(missing):
            name, _, expression = each
            query = _substituted(prometheus, DASHBOARDS[name], expression)
            values = await asyncio.to_thread(prometheus.samples, query, started, time.time())
            # 0 / 0 is not a number; a query whose values are all 0 may count something else.
            may_be_0 = any(metric in expression for metric in NOT_PROVOKED)
            if any(value == value and (value != 0 or may_be_0) for value in values):  # noqa: PLR0124
                missing.discard(each)
    print(f"{count - len(missing)} of {count} queries after {time.time() - started:.1f} s")
    return missing


def _substituted(prometheus: Prometheus, dashboard: dict[str, Any], query: str) -> str:
    """Return a query with the values of variables that Grafana would insert."""
    query = query.replace("$__rate_interval", RATE_INTERVAL)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert parts
            values = prometheus.get(f"/label/{parts[2]}/values", **{"match[]": parts[1]})
            query = query.replace(f"${variable['name']}", f"({'|'.join(values)})")
    assert "$" not in query, query
    return query


def test_an_alert_fires_when_a_service_is_killed(monitored: Monitored):
    prometheus = monitored.prometheus
    labels = {"alertname": "RewardfleetServiceDown", "service": "spare"}
    # A busy machine may have delayed a scrape.
    wait_until(
        lambda: prometheus.value('up{service="spare"}') == 1 and not prometheus.firing(**labels)
    )
    killed = time.monotonic()
    monitored.spare.kill()
    wait_until(lambda: bool(prometheus.firing(**labels)))
    print(f"fires {time.monotonic() - killed:.1f} s after the service was killed")
    (alert,) = prometheus.firing(**labels)
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["summary"] == "No replica of spare answers."
