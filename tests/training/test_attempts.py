"""Four processes of one run, one of which is killed, with the workers of TRL and verl."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rewardfleet.wire.errors import Conflict

from ..server.tools.conftest import served_tools
from . import rank
from .rank import RUN, STEPS, TRUTH

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")
pytest.importorskip("verl")
pytest.importorskip("trl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def service() -> Iterator[httpx.Client]:
    with served_tools() as service:
        for run in (RUN, "verl"):
            options = {"controller": "dual_ascent", "budget": 0, "eta": 1, "parts": 1}
            options["initial_lambda"] = 1
            assert service.put(f"/budgets/{run}", json=options).status_code == 200
        yield service


def test_ranks_of_trl_that_start_again_are_a_new_attempt(
    service: httpx.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    command += ["--standalone", rank.__file__, str(service.base_url), str(tmp_path)]
    environment = {name: each for name, each in os.environ.items() if name[:6] != "REWARD"}
    for is_killed in (True, False):
        given = {"env": environment | {"OMP_NUM_THREADS": "1"}, "timeout": 400}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
        assert (done.returncode != 0) == is_killed, done.stderr[-4000:]
        assert (tmp_path / "died").exists()
    text = " ".join(each.getMessage() for each in caplog.records)
    (discarded,) = re.findall(r"steps from (\d+) on were discarded", text)  # once, by one of four
    expected = 1 + int(discarded) + 2 * (STEPS - int(discarded))
    assert service.get(f"/budgets/{RUN}").json()["lambda"] == expected, "no step counts twice"


@pytest.mark.usefixtures("local_ray")
def test_workers_of_verl_share_an_attempt_that_is_new_with_each_job(service: httpx.Client):
    @ray.remote(num_cpus=0.1)
    class Worker:
        """As verl's reward loop has them: a process that computes rewards by the adapter."""

        def score(self, text: str, step: int) -> tuple[int, float]:
            from rewardfleet.adapters.verl import compute_score_async

            extra = {"run": "verl", "step": step}
            given = {"url": url, "service": "tools"}
            found = asyncio.run(compute_score_async("x", text, TRUTH, extra, **given))
            return os.getpid(), found["score"]

    url = str(service.base_url)
    workers = [Worker.remote() for _ in range(4)]

    def step(number: int) -> tuple[int, set[float]]:
        found = ray.get([each.score.remote(TRUTH, number) for each in workers])
        return len({pid for pid, _ in found}), {reward for _, reward in found}

    def cost(number: int) -> None:
        body = {"step": number, "part": "all", "costs": [1], "attempt": attempt}
        assert service.post("/budgets/verl/update", json=body).status_code == 200

    assert step(0) == (4, {3.0})
    context = ray.get_runtime_context()
    attempt = f"{context.get_node_id()} {context.get_job_id()}"
    cost(0)
    assert step(1) == (4, {2.0})
    ray.kill(workers[0])
    workers[0] = Worker.remote()
    assert step(1) == (4, {2.0}), "a worker that is started again is in the attempt"
    cost(1)
    old = attempt
    ray.shutdown()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    workers = [Worker.remote() for _ in range(4)]
    assert step(1) == (4, {2.0}), "before step 1"
    attempt = old
    with pytest.raises(AssertionError):
        cost(1)
    assert Conflict.status == 409
