"""The dashboards of Grafana, from deploy/grafana/panels.toml. Run by `docs/generate.py`."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SOURCE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent.parent / "deploy/grafana/panels.toml").read_text()
)
#: The width of a dashboard, and the size of a panel, in units of Grafana's grid.
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OPTIONS = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {
        "calculate": False,  # the data are buckets already
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        "yAxis": {"axisPlacement": "left", "unit": "short"},
    },
}


def names() -> list[str]:
    """Return the names of the dashboards."""
    return list(_SOURCE["dashboards"])


def dashboard(name: str) -> str:
    """Return the JSON of a dashboard."""
    return json.dumps(_dashboard(name, _SOURCE["dashboards"][name]), indent=1) + "\n"


def _dashboard(name: str, dashboard: Mapping[str, Any]) -> dict[str, Any]:
    services = f'rewardfleet_admitted_requests{{service=~"{dashboard["services"]}"}}'
    variables = {"service": services, **dashboard.get("variables", {})}
    return {
        "uid": f"rewardfleet-{name.replace('_', '-')}",
        "title": dashboard["title"],
        "tags": ["rewardfleet"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,  # the cursor is in all panels
        "links": [{"type": "dashboards", "tags": ["rewardfleet"], "title": "rewardfleet"}],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *(_variable(*each) for each in variables.items()),
            ]
        },
        "panels": list(_placed(dashboard["rows"])),
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    """Return a variable whose values are those of a label; at first, all are selected."""
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for heading, names in rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": heading, "gridPos": place, "panels": []}
        y += 1
        for position, name in enumerate(names):
            number += 1
            x = position * _WIDTH % _COLUMNS
            y += _HEIGHT if position and x == 0 else 0
            place = {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_panel(_SOURCE["panels"][name])}
        y += _HEIGHT


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    minimum = {} if panel.get("is_signed") else {"min": 0}
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["description"],
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"], **minimum}, "overrides": []},
        "options": _OPTIONS[kind],
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": _DATASOURCE,
                "expr": query["expr"],
                "legendFormat": query["legend"],
                "format": "heatmap" if kind == "heatmap" else "time_series",
            }
            for position, query in enumerate(panel["queries"])
        ],
    }
