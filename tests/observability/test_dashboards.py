"""The dashboards, as Grafana reads them. Their queries are executed by test_fleet.py."""

import json
import re
from typing import Any

import pytest

from .conftest import ROOT

DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in dashboard["panels"] if each["type"] != "row"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_panel_says_what_it_shows_and_in_which_unit(name: str):
    for panel in panels(DASHBOARDS[name]):
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"], panel
        assert len(panel["description"]) > 40, panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str):
    cells = [
        (x, y)
        for each in DASHBOARDS[name]["panels"]
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_grafana_finds_the_dashboards_where_compose_mounts_them():
    provider = (ROOT / "deploy/grafana/provisioning/dashboards/rewardfleet.yml").read_text()
    path = re.search(r"path: ([\w/]+)", provider)
    compose = (ROOT / "docker-compose.yml").read_text()
    assert path and f"./deploy/grafana/dashboards:{path[1]}:ro" in compose


def test_every_metric_of_a_dashboard_exists():
    """test_fleet.py checks that their queries return data."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    known = set(re.findall(r"`(rewardfleet_\w+)`", page))
    texts = [target["expr"] for each in DASHBOARDS.values() for panel in panels(each)
             for target in panel["targets"]]  # fmt: skip
    used = {re.sub("_(bucket|count|sum)$", "", name)
            for text in texts for name in re.findall(r"\brewardfleet_\w+", text)}  # fmt: skip
    assert len(used) > 20
    assert used <= known
