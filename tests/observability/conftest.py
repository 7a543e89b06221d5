"""`rewardfleet up` under load, and a real Prometheus that scrapes it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..chaos.fleet import fleet_up
from ..conftest import DATA
from ..running import own_environment, running
from .load import LIBERO
from .prometheus import Prometheus, prometheus

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "deploy/alerts.yml"

_CONFIG = (DATA / "observability" / "fleet.toml").read_text().replace("LIBERO", str(LIBERO))


@dataclass(frozen=True)
class Monitored:
    """A fleet that Prometheus scrapes."""

    url: str
    pid: int  #: of `rewardfleet up`
    spare: subprocess.Popen[bytes]  #: a service of its own, with the label `service="spare"`
    prometheus: Prometheus  #: scrapes all of them each second, with the rules of deploy/alerts.yml


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    folder = tmp_path_factory.mktemp("monitored")
    # The same expressions; only the times for which they must hold are shorter.
    (folder / "alerts.yml").write_text(re.sub(r"(?m)^( +for:) \w+", r"\1 1s", ALERTS.read_text()))
    spare_port = free_port()
    spare_command = [sys.executable, "-m", "rewardfleet_server", "serve", "tools"]
    spare_page = f"http://127.0.0.1:{spare_port}/readyz"
    own = {"env": own_environment()}
    with (
        running([*spare_command, f"--port={spare_port}"], spare_page, **own) as spare,
        fleet_up(folder, _CONFIG, **own) as fleet,
    ):
        targets = {
            urlsplit(replica["url"]).netloc: name
            for name, service in fleet.index().items()
            for replica in service["replicas"]
        }
        targets[f"127.0.0.1:{spare_port}"] = "spare"
        with prometheus(folder, folder / "alerts.yml", targets) as server:
            wait_until(lambda: server.value("count(up == 1)") == len(targets), 60)
            yield Monitored(fleet.url, fleet.pid, spare, server)
