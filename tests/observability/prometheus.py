"""A real Prometheus on loopback, from Debian's packages."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rewardfleet_server.up.settings import free_port

from ..debian import extract
from ..running import running

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewardfleet-prometheus"
_PROGRAMS = ("prometheus", "promtool")


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; download them if there are none."""
    if all(map(shutil.which, _PROGRAMS)):
        return name
    folder = _CACHE / "extracted/usr/bin"
    if not all((folder / each).exists() for each in _PROGRAMS):
        extract(_PROGRAMS, _CACHE)
    return str(folder / name)


class Prometheus:
    """A running Prometheus."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http  # of its API

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer of its HTTP API."""
        answer = self._http.get(path, params=parameters).json()
        assert answer["status"] == "success", (path, parameters, answer)
        return answer["data"]

    def value(self, query: str) -> float | None:
        """Return the value of a query with one result; None without a result."""
        found = self.get("/query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def samples(self, query: str, start: float, end: float) -> list[float]:
        """Return the values of all series of a query, one per second."""
        found = self.get("/query_range", query=query, start=start, end=end, step=1)["result"]
        return [float(value) for series in found for _, value in series["values"]]

    def firing(self, **labels: str) -> list[dict[str, Any]]:
        """Return the alerts that fire and have these labels."""
        firing = [each for each in self.get("/alerts")["alerts"] if each["state"] == "firing"]
        return [each for each in firing if labels.items() <= each["labels"].items()]


@contextmanager
def prometheus(folder: Path, rules: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Run Prometheus in a folder, with a file of rules; `targets` are the services by address."""
    static = [{"targets": [at], "labels": {"service": name}} for at, name in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "rewardfleet", "static_configs": static}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML contains JSON
    address = f"127.0.0.1:{free_port()}"
    files = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [program("prometheus"), *files, f"--web.listen-address={address}", "--log.level=warn"]
    api, log = f"http://{address}/api/v1", folder / "prometheus.log"
    with (
        running(command, f"{api}/status/runtimeinfo", log=log),
        httpx.Client(base_url=api, trust_env=False, timeout=60) as http,
    ):
        yield Prometheus(http)
