"""The services on a local Ray: the same scores, also while replicas are killed."""

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner

import rewardfleet
from rewardfleet import RewardFleet
from rewardfleet_server.code.app import create_app as create_code_app
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.settings import ToolsSettings
from rewardfleet_server.up.settings import free_port
from rewardfleet_server.video.app import create_app as create_video_app
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import table
from ..running import output_of
from .conftest import KEY, ROOT, SCRIPT, VIDEOS, Cluster, replicas

CLIPS = sorted((VIDEOS / "videos").glob("libero_goal*.mp4"))[:12]
TASK = "put the bowl on the stove"


@pytest.fixture
def script(monkeypatch):
    """Import deploy/ray_serve.py, as `serve deploy` does."""
    specification = importlib.util.spec_from_file_location("ray_serve", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "ray_serve", module)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain():
    """Serve the services without Ray."""
    with (
        serving(create_code_app(CodeSettings(cache_mb=0, cache=None, workers=1))) as code,
        serving(create_video_app(VideoSettings(video_root=[VIDEOS], cache_mb=0))) as video,
        serving(create_tools_app(ToolsSettings())) as tools,
    ):
        yield {"code": code, "video": video, "tools": tools}


def kill_one(service: str) -> None:
    """Kill a replica of a service, once it has two."""
    wait_until(lambda: len(replicas(service)) >= 2, 180)
    os.kill(replicas(service)[0], signal.SIGKILL)


async def score_programs(fleet: RewardFleet, on_start: Callable[[], None]) -> list[Any]:
    """Score programs of 0.15 s with known, different pass rates; `on_start`: while they run."""

    async def score(number: int) -> Any:
        sums = [str(number + each) if each >= number % 4 else "?" for each in range(3)]
        cases = [{"stdin": f"{number} {at}", "stdout": each} for at, each in enumerate(sums)]
        program = "import time\ntime.sleep(0.05)\nprint(sum(map(int, input().split())))"
        return await fleet.code.score(program, {"kind": "stdio", "cases": cases})

    return await gathered(map(score, range(24)), on_start)


async def gathered(calls: Iterable[Coroutine[Any, Any, Any]], on_start: Callable[[], None]) -> Any:
    """Make all calls, and call `on_start` while some of them are answered and others not."""
    tasks = [*map(asyncio.create_task, calls)]
    while not any(task.done() for task in tasks):
        await asyncio.sleep(0.01)
    assert not all(task.done() for task in tasks)
    on_start()
    return await asyncio.gather(*tasks)


async def test_the_items_of_a_batch_start_replicas_and_each_has_a_gpu(cluster: Cluster):
    """One request with 8 items, of which 2 are meant for each replica; Ray would count it as 1."""
    assert len(replicas("video")) == 2
    async with cluster.fleet() as fleet:

        async def texts(seconds: float, count: int) -> list[str]:
            options = {"backend": "waiting", "backend_kwargs": {"seconds": seconds}}
            item = rewardfleet.video_request(TASK, CLIPS[0], **options)
            scores = await fleet.video.score_batch([item] * count)
            return [each.model_output for each in scores]

        batch = asyncio.create_task(texts(15, 8))  # longer than the start of a replica
        async with asyncio.timeout(150):
            while len(replicas("video")) < 3:
                assert not batch.done()
                await asyncio.sleep(0.1)
            seen = set(await batch)
            while len({text.split()[0] for text in seen}) < 3:
                seen.update(await texts(0, 1))
    assert {text.split()[0] for text in seen} == {"0", "1", "2"}


@pytest.mark.slice
async def test_programs_get_the_scores_of_the_plain_service_while_a_replica_is_killed(
    cluster: Cluster, plain: dict[str, str]
):
    async with cluster.fleet() as fleet, RewardFleet(code=plain["code"]) as other:
        scores = await score_programs(fleet, lambda: kill_one("code"))
        expected = await score_programs(other, lambda: None)
    assert [each.score for each in scores] == [(3 - n % 4) / 3 for n in range(24)]
    for score, same in zip(scores, expected, strict=True):
        fields = {"score", "status", "isolation", "provenance"}
        assert score.model_dump(include=fields) == same.model_dump(include=fields)
        assert [each.verdict for each in score.verdicts] == [each.verdict for each in same.verdicts]
    assert {each.isolation for each in scores} <= {"bubblewrap", "landlock"}


async def test_clips_get_the_scores_of_the_plain_service_while_a_replica_is_killed(
    cluster: Cluster, plain: dict[str, str]
):
    async def score(fleet: RewardFleet, on_start: Callable[[], None]) -> list[Any]:
        calls = (fleet.video.score(TASK, each, backend="reference") for each in CLIPS)
        return await gathered(calls, on_start)

    async with cluster.fleet() as fleet, RewardFleet(video=plain["video"]) as other:
        scores = await score(fleet, lambda: kill_one("video"))
        expected = await score(other, lambda: None)
    assert [each.score for each in scores] == [each.score for each in expected]
    assert [each.provenance for each in scores] == [each.provenance for each in expected]
    assert len({each.score for each in scores}) > 1


async def test_a_step_of_a_budget_counts_once_while_a_replica_is_killed(
    cluster: Cluster, plain: dict[str, str]
):
    async def update(fleet: RewardFleet, on_half: Callable[[], None]) -> Any:
        await fleet.tools.put_budget("run", budget=0.3, parts=1)
        for step in range(20):
            if step == 10:
                on_half()
            # As a trainer does that does not know whether its step arrived.
            for _ in range(2):
                await fleet.tools.update_budget("run", step=step, costs=[0.1 * step], part="all")
        return await fleet.tools.budget("run")

    async with cluster.fleet() as fleet, RewardFleet(tools=plain["tools"]) as other:
        budget = await update(fleet, lambda: kill_one("tools"))
        expected = await update(other, lambda: None)
    assert budget.model_dump() == expected.model_dump()


async def test_a_caller_that_disconnects_ends_its_computation(cluster: Cluster):
    def at_work() -> float:
        """The items in all replicas: a page is that of any of them."""
        with cluster.http() as http:
            pages = [http.get("/video/metrics").text for _ in range(12)]
        counts = [re.findall(r"(?m)^rewardfleet_in_flight_items\S* (\S+)", page) for page in pages]
        return max(float(count) for (count,) in counts)

    async with cluster.fleet() as fleet:
        options = {"backend": "waiting", "backend_kwargs": {"seconds": 50}}
        task = asyncio.create_task(fleet.video.score(TASK, CLIPS[0], **options))
        while await asyncio.to_thread(at_work) != 1:
            assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: at_work() == 0, 40)


async def test_a_service_at_capacity_answers_429_itself(cluster: Cluster):
    body = {"task_text": TASK, "video_path": str(CLIPS[0]), "backend": "waiting"}
    body["backend_kwargs"] = {"seconds": 1}
    options = {"headers": {"authorization": f"Bearer {KEY}"}, "timeout": 60, "trust_env": False}
    limits = httpx.Limits(max_connections=60)
    async with httpx.AsyncClient(limits=limits, **options) as http:
        sent = [http.post(f"{cluster.url}/video/score", json=body) for _ in range(60)]
        answers = await asyncio.gather(*sent)
    assert {each.status_code for each in answers} == {200, 429}
    for each in answers:
        if each.status_code == 429:
            assert each.json()["kind"] == "overloaded"
            assert int(each.headers["retry-after"]) >= 1


def test_the_pages_of_the_fleet_and_of_a_service(cluster: Cluster):
    with cluster.http() as http:
        index = http.get("/")
        assert index.headers["x-rewardfleet-service"] == index.json()["service"] == "gateway"
        assert list(index.json()["services"]) == ["video", "code", "episode", "tools", "answers"]
        wait_until(lambda: http.get("/readyz").status_code == 200, 180)
        assert http.get("/code/").json()["service"] == "code"
        assert '"/code/openapi.json"' in http.get("/code/docs").text.replace("'", '"')
        answer = http.post("/tools/score", json={}, headers={"x-request-id": "mine"})
        assert answer.status_code == 422
        assert answer.headers.get_list("x-request-id") == ["mine"]
        assert answer.json()["request_id"] == "mine"
        assert http.post("/tools/score", headers={"authorization": "x"}).status_code == 401
        assert http.get("/code/inflight").json()["total"] == 0
        missing = http.get("/nothing/score")
        assert missing.status_code == 404 and missing.json()["kind"] == "not_found"
        assert "the services are at /video, /code, /episode, /tools" in missing.json()["detail"]
    environment = {**os.environ, "REWARDFLEET_API_KEY": KEY}
    command = (sys.executable, "-m", "rewardfleet_server", "status", cluster.url)
    table = output_of(*command, env=environment)
    for name in ("gateway", "video", "code", "episode", "tools", "answers"):
        assert re.search(rf"(?m)^{name}.* ready ", table), table


# What is refused


def test_a_serve_that_runs_already_requires_keys(cluster: Cluster):
    """Its proxies may listen on any address, whatever this command is given."""
    output = cluster.run_script("--address", cluster.address, "--only", "tools", code=1)
    assert "give --api-key-file, or allow_unauthenticated" in output


def test_what_cannot_work_is_refused_before_ray_starts(script, tmp_path):
    file = tmp_path / "fleet.toml"
    for config, arguments, message in table("ray_settings"):
        file.write_text(config)
        result = CliRunner().invoke(script.main, ["--config", str(file), *arguments])
        assert result.exit_code == 1, result.output
        assert message in result.output


def test_the_configuration_file_of_serve_builds_the_applications(script):
    """`serve deploy` imports them by name. Without keys it refuses, as proxies may be reachable."""
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load((ROOT / "deploy" / "ray_serve.yaml").read_text())
    schema = ServeDeploySchema.model_validate(config)
    assert schema.http_options.host == "127.0.0.1"
    prefixes = {each.route_prefix for each in schema.applications}
    assert prefixes == {"/", "/video", "/code", "/episode", "/tools"}
    for each in schema.applications:
        file, _, name = each.import_path.partition(":")
        assert file == "ray_serve"
        getattr(script, name)(each.args)
        if name != "index":
            with pytest.raises(ValueError, match="allow_unauthenticated"):
                getattr(script, name)({**each.args, "host": "0.0.0.0"})


def test_a_judge_with_a_model_gets_its_gpus(script, tmp_path):
    """One per tensor parallel and data parallel rank, unless the options say otherwise."""

    def gpus(**args: object) -> float:
        application = script.video({"host": "127.0.0.1", **args})
        return application._bound_deployment.ray_actor_options.get("num_gpus", 0)

    replicas = {"model_path": "m", "set": ["data_parallel_size=2"]}
    model = {**replicas, "tensor_parallel_size": 2}
    assert gpus() == 0
    assert gpus(**model) == gpus(**model, backend=["roboreward"]) == 4
    assert gpus(**replicas, backend=["PRIMO-R1"]) == 2
    assert gpus(**model, ray={"ray_actor_options": {"num_gpus": 1}}) == 1


# On a Ray of its own


async def test_sigterm_answers_admitted_requests_and_ends_the_local_ray(
    environment: dict[str, str], tmp_path
):
    port = free_port()
    before = set(replicas("code"))
    log = tmp_path / "log"
    command = [sys.executable, str(SCRIPT), "--only", "code", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    tests = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
    try:
        async with RewardFleet(f"http://127.0.0.1:{port}", timeout_s=60) as fleet:
            async with asyncio.timeout(300):
                while f"code at http://127.0.0.1:{port}\n" not in log.read_text():
                    assert process.poll() is None, log.read_text()
                    await asyncio.sleep(0.1)
            slow = "import time\ntime.sleep(5)\nprint(input())"
            score = asyncio.create_task(fleet.code.score(slow, tests))
            async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
                url = f"http://127.0.0.1:{port}/code/inflight"
                while (await http.get(url)).json()["total"] == 0:
                    assert not score.done()
                    await asyncio.sleep(0.05)
            process.terminate()
            assert (await score).score == 1
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 200)
    await asyncio.to_thread(wait_until, lambda: not set(replicas("code")) - before, 120)


def test_the_file_of_the_documentation_is_accepted(script, tmp_path):
    page = (ROOT / "docs" / "ray-serve.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "ray.toml"
    file.write_text(text.replace("/shared", str(tmp_path)))
    (tmp_path / "keys").write_text(KEY)
    planned = script._plan(script.read_config(file, {}), "0.0.0.0")
    assert list(planned) == ["video", "code", "tools"]
    assert planned["code"][0].workers == 4
