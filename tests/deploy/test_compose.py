"""Images and docker-compose.yml, in a real engine with the real client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardfleet import RewardFleet, Unavailable, episode_request
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..server.processes import descendants
from .conftest import Stack, request, status
from .engine import HERE, ROOT, Engine

LIBERO = ROOT / "tests/data/libero"
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
#: Reads /dev/stdin, which needs /proc in the jail, and imports a package.
PROGRAM = (
    "import numpy as np\nprint(int(np.sum([int(x) for x in open('/dev/stdin').read().split()])))"
)
SUM = {"kind": "stdio", "cases": [{"stdin": "2 3", "stdout": "5"}]}
ANSWER = (
    '<think>I look it up.</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
)


# Images


@pytest.mark.slice
def test_the_image_has_no_compiler_and_no_root(engine: Engine):
    config = json.loads(engine.docker("inspect", "rewardfleet:cpu"))[0]["Config"]
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["rewardfleet"])
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    found = engine.docker(
        *("run", "--rm", "--network=none", "--entrypoint=sh", "rewardfleet:cpu"),
        *("-c", "id -u; command -v cc gcc g++ clang make || echo none"),
    )
    assert found.split() == ["10001", "none"]


def test_a_service_refuses_to_listen_beyond_loopback_without_a_key(engine: Engine):
    run = ("run", "--rm", "--network=none", *HARDENED, "rewardfleet:cpu", "serve", "tools")
    assert "--api-key-file" in engine.docker(*run, check=False)


def test_programs_are_kept_within_the_memory_of_their_container(engine: Engine):
    run = ("run", "--rm", "--network=none", "--memory=2g", *HARDENED)
    run += ("--env=REWARDFLEET_HOST=127.0.0.1",)  # doctor needs no key then
    found = engine.docker(*run, "rewardfleet:cpu", "doctor", check=False)
    assert "code: memory: this container has 1.5 GiB for programs, of 2.0 GiB" in found
    many = (*run, "--env=REWARDFLEET_WORKERS=64", "rewardfleet:cpu", "doctor")
    assert "failed  code: --workers 64" in engine.docker(*many, check=False)


def test_the_gpu_image_builds_over_a_base_and_leaves_its_packages_as_they_are(engine: Engine):
    """The base here is a stand-in without vLLM; sortedcontainers is older than in the lock."""
    dockerfile, empty = ROOT / "deploy/Dockerfile", engine.folder / "empty"
    engine.build(dockerfile, "standin-packages", ROOT, "--target=build")
    engine.build(HERE / "images.Dockerfile", "standin-vllm", empty, "--target=vllm")
    flags = ("--target=gpu", "--build-arg=GPU_BASE=standin-vllm")
    engine.build(dockerfile, "rewardfleet:gpu", ROOT, *flags)
    program = (
        "import os, redis, msgspec, rewardfleet_server.video.app\n"
        "from importlib.metadata import version\n"
        "print(os.geteuid(), version('sortedcontainers'), os.access('/models', os.W_OK))"
    )
    run = ("run", "--rm", "--network=none", "--entrypoint=python3", "rewardfleet:gpu", "-c")
    assert engine.docker(*run, program) == "10001 2.3.0 True"


@pytest.mark.parametrize("profile", ["grafana", "gpu"])
def test_a_profile_is_valid(engine: Engine, profile: str):
    config = json.loads(engine.docker("compose", "--profile", profile, "config", "--format=json"))
    if profile == "gpu":
        judge = config["services"]["vlm"]
        devices = [{"capabilities": ["gpu"], "driver": "nvidia", "count": 1}]
        assert judge["deploy"]["resources"]["reservations"]["devices"] == devices
        models = {"type": "volume", "source": "models", "target": "/models", "volume": {}}
        assert models in judge["volumes"]
    else:
        environment = config["services"]["grafana"]["environment"]
        assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"


def test_every_variable_of_the_example_is_used_and_no_other():
    compose = (ROOT / "docker-compose.yml").read_text()
    used = {part.partition(":")[0] for part in compose.split("${")[1:]}
    example = (ROOT / ".env.example").read_text().splitlines()
    named = {line[1:].partition("=")[0] for line in example if "=" in line}
    assert named == used - {"SECRETS"}  # `make up SECRETS=…` sets it


# The stack


def test_containers_are_confined_and_publish_loopback_ports_only(stack: Stack):
    services = set()
    for each in json.loads(stack.engine.docker("inspect", *stack.containers())):
        config, host = each["Config"], each["HostConfig"]
        services.add(service := config["Labels"]["com.docker.compose.service"])
        assert each["State"]["Health"]["Status"] == "healthy", service
        assert config["User"] not in {"", "root", "0"}, service
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], service
        assert host["CapAdd"] is None, service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["LogConfig"]["Config"] == {"max-file": "5", "max-size": "100m"}, service
        assert host["Memory"] and host["NanoCpus"] and host["PidsLimit"], service
        assert stack.api_key not in json.dumps(each), service
        published = each["NetworkSettings"]["Ports"].values()
        is_public = service in {"proxy", "prometheus"}
        addresses = {port["HostIp"] for ports in published for port in ports or ()}
        assert addresses == ({"127.0.0.1"} if is_public else set()), service
    assert services == {"redis", "proxy", "prometheus", *SERVICES}


def test_secrets_are_files_that_only_their_owner_can_reach(stack: Stack):
    folder = Path(stack.engine.environment["SECRETS"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(stack.api_key) == 48
    subprocess.run(["make", "secrets", f"SECRETS={folder}"], cwd=ROOT, check=True, timeout=30)
    assert (folder / "api_key").read_text() == stack.api_key


@pytest.mark.slice
async def test_one_item_of_each_service_is_scored(stack: Stack):
    entry = json.loads((LIBERO / "manifest.jsonl").read_text().splitlines()[0])
    async with stack.client() as fleet:
        clip = (LIBERO / entry["file"]).read_bytes()
        rollout = await fleet.video.score(entry["task_text"], clip)
        assert rollout.status == "ok" and 0 <= rollout.score <= 1
        by_path = await fleet.video.score(entry["task_text"], f"/data/rollouts/{entry['file']}")
        assert by_path.score == rollout.score

        program = await fleet.code.score(PROGRAM, SUM)
        assert (program.score, program.isolation) == (1.0, "bubblewrap"), program

        batch = [
            episode_request("a", group="g", kind="efficiency", success=1, steps=100, max_steps=500),
            episode_request("b", group="g", kind="efficiency", success=0, steps=500, max_steps=500),
        ]
        response = await fleet.episode.score_batch(batch, {"normalize": "group_std"})
        assert [round(each.score, 2) for each in response.results] == [0.71, -0.71]

        answer = await fleet.tools.score(ANSWER, ANSWER)
        assert answer.score == 4.0


def test_responses_without_a_key(stack: Stack):
    with httpx.Client(base_url=stack.url, trust_env=False, timeout=60) as http:
        assert "/code/openapi.json" in http.get("/code/docs").text  # pages know their prefix
        assert http.post("/tools/score", json={}).status_code == 401
        for _ in range(20):  # the service answers before it has read the body
            assert http.post("/video/score", content=b"x" * 5_000_000).status_code == 401


def test_status_shows_the_fleet(stack: Stack):
    command = [sys.executable, "-m", "rewardfleet_server", "status", stack.url, "--json"]
    environment = {**os.environ, "REWARDFLEET_API_KEY": stack.api_key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    services = {each["service"]: each["health"] for each in json.loads(done.stdout)}
    assert services == dict.fromkeys(("gateway", *SERVICES), "ready")


def test_prometheus_scrapes_every_service_and_evaluates_the_alert_rules(stack: Stack):
    def data(path: str) -> dict[str, Any]:
        return request("GET", f"{stack.prometheus}/api/v1/{path}").json()["data"]

    def targets() -> dict[str, str]:
        result = data("query?query=up")["result"]
        return {each["metric"]["service"]: each["value"][1] for each in result}

    def rules() -> set[str]:
        return {rule["health"] for group in data("rules")["groups"] for rule in group["rules"]}

    wait_until(lambda: targets() == dict.fromkeys(("proxy", *SERVICES), "1"), 120)
    wait_until(lambda: rules() == {"ok"}, 120)


# The jail in a container


async def check_isolation(url: str, level: str, *, steal: str, api_key: str | None = None) -> None:
    """Check the level of a code service, and that its programs cannot read what `steal` prints."""
    wait_until(lambda: status("GET", f"{url}/readyz") == 200, 150)
    assert request("GET", f"{url}/readyz").json()["isolation"] == level
    async with RewardFleet(code=url, api_key=api_key) as fleet:
        score = await fleet.code.score(PROGRAM, SUM)
        assert (score.score, score.isolation) == (1.0, level), score
        stolen = await fleet.code.score(steal, SUM)
        assert stolen.score == 0 and not stolen.verdicts[0].stdout, stolen


SECCOMP = "--security-opt=seccomp=deploy/seccomp-code.json"


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ((), "landlock"),
        ((SECCOMP,), "landlock"),  # /proc is masked
        ((SECCOMP, "--security-opt=systempaths=unconfined"), "bubblewrap"),
    ],
)
async def test_the_isolation_level_follows_from_the_options_of_the_container(
    engine: Engine, options: tuple[str, ...], level: str
):
    port = free_port()
    container = engine.docker(
        *("run", "--rm", "--detach", "--init", "--network=host", *HARDENED, *options),
        *("rewardfleet:cpu", "serve", "code", "--host=127.0.0.1", f"--port={port}"),
    )
    try:
        secrets = "print(open('/proc/1/environ').read(), open('/etc/passwd').read())"
        await check_isolation(f"http://127.0.0.1:{port}", level, steal=secrets)
    finally:
        started = time.monotonic()
        engine.docker("stop", "--time=60", container)
    assert time.monotonic() - started < 50, "SIGTERM did not reach the server"


# Replicas


@pytest.mark.parametrize("how", ["kill", "pause", "stop"])
async def test_nothing_is_lost_when_a_replica_is_killed_or_frozen_under_load(
    stack: Stack, how: str
):
    """`stop` is SIGSTOP to the process in the container, which is started again."""
    stack.up("--no-build", "--no-recreate", "--scale=code=2")
    replicas = stack.containers("code")
    assert len(replicas) == 2
    before = {replica: _results(stack, replica) for replica in replicas}
    state = _state(stack, replicas[0])
    count, done = 200, 0

    async with stack.client(timeout_s=200) as fleet:

        async def score(number: int) -> float | None:
            nonlocal done
            tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": str(number)}]}
            # Another program each time, which is not in the cache.
            program = f"import time\ntime.sleep(0.1)\nlen({how!r})\nprint({number})"
            result = await fleet.code.score(program, tests)
            done += 1
            return result.score

        def all_are_used() -> bool:
            return all(_results(stack, each) > before[each] for each in replicas)

        load = asyncio.gather(*map(score, range(count)))
        await asyncio.to_thread(wait_until, all_are_used, 60)
        assert done < count * 0.9
        if how == "stop":
            (service,) = descendants(state["State"]["Pid"], depth=1)
            os.kill(service, signal.SIGSTOP)
        else:
            await asyncio.to_thread(stack.engine.docker, how, replicas[0])
        assert done < count, "the replica failed after the load"
        started = time.monotonic()
        assert await load == [1.0] * count
        print(f"{how}: all calls are answered after {time.monotonic() - started:.1f} s")
    if how == "pause":
        stack.engine.docker("unpause", replicas[0])
    elif how == "stop":
        wait_until(lambda: _state(stack, replicas[0])["RestartCount"] > state["RestartCount"], 90)
        print(f"restarted after {time.monotonic() - started:.1f} s")
    if how != "kill":
        wait_until(lambda: _state(stack, replicas[0])["State"]["Health"]["Status"] == "healthy", 90)
    stack.up("--no-build", "--no-recreate", "--scale=code=1")


async def test_without_redis_caches_are_bypassed_and_stateful_calls_fail_until_it_is_back(
    stack: Stack,
):
    headers = {"authorization": f"Bearer {stack.api_key}"}

    def keys_in_redis() -> int:
        return int(stack.compose("exec", "-T", "redis", "redis-cli", "dbsize"))

    def is_cached_in_redis() -> bool:
        """Score a new program, and return whether Redis has more keys then.

        The score is stored before the response, unless the service still skips Redis after a
        failure.
        """
        before = keys_in_redis()
        body = {"revision": f"print({time.monotonic_ns()})", "tests": SUM}
        request("POST", f"{stack.url}/code/score", json=body, headers=headers)
        return keys_in_redis() > before

    async with stack.client() as fleet:
        await fleet.code.score("print(sum(map(int, input().split())))", SUM)
        await fleet.tools.put_budget("run", budget=0.3, parts=1)
        before = await fleet.tools.update_budget("run", step=0, costs=[1.0])
        stack.compose("stop", "redis")
        uncached = await fleet.code.score("print(sum([int(x) for x in input().split()]))", SUM)
        assert (uncached.score, uncached.cached) == (1.0, False)
        async with stack.client(timeout_s=30) as impatient:
            with pytest.raises(Unavailable):
                await impatient.tools.update_budget("run", step=1, costs=[1.0])
        # The gateway holds it, as no replica of the service is ready.
        few = {**headers, "x-request-timeout": "5"}
        answer = request("GET", f"{stack.url}/tools/budgets/run", headers=few, timeout=30)
        assert (answer.status_code, answer.json()["retryable"]) == (503, True)
        stack.up("--no-build")
        after = await fleet.tools.update_budget("run", step=1, costs=[1.0])
        assert after.lambda_ > before.lambda_ > 0  # nothing is lost, and each step counts once
        # A new process has nothing in memory, so the score comes from Redis.
        unseen = "print(2 + 3)"
        wait_until(is_cached_in_redis)
        await fleet.code.score(unseen, SUM)
        stack.up("--no-build", "--force-recreate", "--no-deps", "code")
        assert (await fleet.code.score(unseen, SUM)).cached


def test_make_down_ends_the_stack(stack: Stack):
    environment = stack.engine.environment
    subprocess.run(["make", "down"], cwd=ROOT, env=environment, check=True, timeout=180)
    assert stack.containers() == []


def _state(stack: Stack, container: str) -> Any:
    (state,) = json.loads(stack.engine.docker("inspect", container))
    return state


def _results(stack: Stack, container: str) -> float:
    """Return how many items a replica has scored."""
    program = (
        "from urllib.request import urlopen\n"
        "print(urlopen('http://127.0.0.1:8080/metrics').read().decode())"
    )
    text = stack.engine.docker("exec", container, "python", "-c", program)
    lines = [line for line in text.splitlines() if line.startswith("rewardfleet_results_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
