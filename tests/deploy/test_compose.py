"""Images and docker-compose.yml, in a real engine with the real client."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rewardfleet import RewardFleet, Unavailable, episode_request
from rewardfleet.wire.errors import Problem
from rewardfleet_server.fleet.settings import free_port
from rewardfleet_server.testing import wait_until

from .conftest import Stack
from .engine import HERE, ROOT, Engine

LIBERO = ROOT / "tests/data/libero"
SERVICES = ("video", "code", "episode", "tools")
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
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["rewardfleet"]
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


def test_the_gpu_image_builds_over_a_base_and_leaves_its_packages_as_they_are(engine: Engine):
    """The base here is a stand-in without vLLM; sortedcontainers is older than in the lock."""
    engine.build(ROOT / "deploy/Dockerfile", "standin-packages", ROOT, "--target=build")
    engine.build(
        HERE / "images.Dockerfile", "standin-vllm", engine.folder / "empty", "--target=vllm"
    )
    flags = ("--target=gpu", "--build-arg=GPU_BASE=standin-vllm")
    engine.build(ROOT / "deploy/Dockerfile", "rewardfleet:gpu", ROOT, *flags)
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
    services = config["services"]
    if profile == "gpu":
        devices = services["vlm"]["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"capabilities": ["gpu"], "driver": "nvidia", "count": 1}]
        assert {"type": "volume", "source": "models", "target": "/models", "volume": {}} in (
            services["vlm"]["volumes"]
        )
    else:
        environment = services["grafana"]["environment"]
        assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"


def test_every_variable_of_the_example_is_used_and_no_other():
    compose = (ROOT / "docker-compose.yml").read_text()
    used = {part.partition(":")[0] for part in compose.split("${")[1:]}
    example = (ROOT / ".env.example").read_text().splitlines()
    named = {line[1:].partition("=")[0] for line in example if "=" in line}
    assert named == used - {"SECRETS"}  # `make up SECRETS=…` sets it


# The stack


def test_only_loopback_ports_are_published(stack: Stack):
    published = {}
    for container in stack.containers():
        config = stack.inspect(container)
        service = config["Config"]["Labels"]["com.docker.compose.service"]
        assert config["State"]["Health"]["Status"] == "healthy", service
        ports = [
            each for ports in config["NetworkSettings"]["Ports"].values() for each in ports or ()
        ]
        published[service] = {each["HostIp"] for each in ports}
    assert published.pop("proxy") == {"127.0.0.1"}
    assert published.pop("prometheus") == {"127.0.0.1"}
    assert published == {"redis": set(), **{name: set() for name in SERVICES}}


def test_containers_are_confined(stack: Stack):
    for container in stack.containers():
        config = stack.inspect(container)
        service, host = (
            config["Config"]["Labels"]["com.docker.compose.service"],
            config["HostConfig"],
        )
        assert config["Config"]["User"] not in {"", "root", "0"}, service
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], service
        assert host["CapAdd"] == (["NET_BIND_SERVICE"] if service == "proxy" else None)
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["Memory"] and host["NanoCpus"] and host["PidsLimit"], service


def test_secrets_are_files_that_only_their_owner_can_reach(stack: Stack):
    folder = Path(stack.engine.environment["SECRETS"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(stack.api_key) == 48
    before = stack.api_key
    subprocess.run(["make", "secrets", f"SECRETS={folder}"], cwd=ROOT, check=True, timeout=30)
    assert (folder / "api_key").read_text() == before
    for container in stack.containers():
        assert stack.api_key not in json.dumps(stack.inspect(container))
    assert httpx.post(f"{stack.url}/tools/score", json={}, trust_env=False).status_code == 401


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


def test_large_requests_that_are_refused_early_are_answered(stack: Stack):
    """The service answers before it has read the body."""
    with httpx.Client(trust_env=False, timeout=60) as http:
        for _ in range(20):
            answer = http.post(f"{stack.url}/video/score", content=b"x" * 5_000_000)
            assert answer.status_code == 401


def test_pages_know_their_prefix(stack: Stack):
    page = httpx.get(f"{stack.url}/code/docs", timeout=60, trust_env=False).text
    assert "/code/openapi.json" in page


def test_status_shows_the_fleet(stack: Stack):
    command = [sys.executable, "-m", "rewardfleet_server", "status", stack.url, "--json"]
    environment = {**os.environ, "REWARDFLEET_API_KEY": stack.api_key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    services = {each["service"]: each["health"] for each in json.loads(done.stdout)}
    assert services == dict.fromkeys(SERVICES, "ready")


def test_prometheus_scrapes_every_service(stack: Stack):
    def scraped() -> bool:
        answer = httpx.get(f"{stack.prometheus}/api/v1/query?query=up", trust_env=False).json()
        values = {each["metric"]["service"]: each["value"][1] for each in answer["data"]["result"]}
        return values == dict.fromkeys(SERVICES, "1")

    wait_until(scraped, 120)


def test_prometheus_evaluates_the_alert_rules(stack: Stack):
    def rules() -> list[dict]:
        answer = httpx.get(f"{stack.prometheus}/api/v1/rules", trust_env=False).json()
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]

    assert rules()
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), 120)


# The jail in a container


@pytest.mark.parametrize(
    ("options", "isolation"),
    [
        ((), "landlock"),
        (("--security-opt=seccomp=deploy/seccomp-code.json",), "landlock"),  # /proc is masked
        (
            (
                "--security-opt=seccomp=deploy/seccomp-code.json",
                "--security-opt=systempaths=unconfined",
            ),
            "bubblewrap",
        ),
    ],
)
async def test_the_isolation_level_follows_from_the_options_of_the_container(
    engine: Engine, options: tuple[str, ...], isolation: str
):
    url = f"http://127.0.0.1:{(port := free_port())}"
    container = engine.docker(
        *("run", "--rm", "--detach", "--init", "--network=host", *HARDENED, *options),
        *("rewardfleet:cpu", "serve", "code", "--host=127.0.0.1", f"--port={port}"),
    )
    try:
        wait_until(lambda: _status(f"{url}/readyz") == 200, 120)
        assert (
            httpx.get(f"{url}/readyz", timeout=60, trust_env=False).json()["isolation"] == isolation
        )
        async with RewardFleet(code=url) as fleet:
            score = await fleet.code.score(PROGRAM, SUM)
            assert (score.score, score.isolation) == (1.0, isolation), score
            secret = "print(open('/proc/1/environ').read(), open('/etc/passwd').read())"
            stolen = await fleet.code.score(secret, SUM)
            assert stolen.score == 0 and not stolen.verdicts[0].stdout
    finally:
        started = time.monotonic()
        engine.docker("stop", "--time=60", container)
    assert time.monotonic() - started < 50, "SIGTERM did not reach the server"


# Replicas


async def test_a_refusal_of_one_replica_goes_to_another(stack: Stack):
    """Stand-ins for two replicas, one of which is always at capacity."""
    program = (
        "from http.server import *\nimport sys\n"
        "class Replica(BaseHTTPRequestHandler):\n"
        "    protocol_version = 'HTTP/1.1'\n"
        "    def do_POST(self):\n"
        "        body = self.rfile.read(int(self.headers['content-length']))\n"
        "        self.send_response(int(sys.argv[1]))\n"
        "        self.send_header('retry-after', '7')\n"
        "        self.send_header('content-length', str(len(body)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "ThreadingHTTPServer(('', 8080), Replica).serve_forever()"
    )
    run = ("run", "--rm", "--detach", f"--network={stack.network}", "--network-alias=vlm", "--init")
    standins = [
        stack.engine.docker(*run, "python:3.13-slim", "python", "-c", program, status)
        for status in (429, 200)
    ]
    try:
        wait_until(lambda: _status(f"{stack.url}/vlm/score", b"up") == 200, 120)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            body = b"x" * 100_000
            answers = [await http.post(f"{stack.url}/vlm/score", content=body) for _ in range(60)]
            passed = [each for each in answers if each.status_code == 200]
            # Each is sent four times; of equally busy replicas, one is chosen at random.
            assert len(passed) > 45
            assert all(each.content == body for each in passed)
            large = b"x" * 3_000_000  # is not stored, so it is sent once, and complete
            answers = [await http.post(f"{stack.url}/vlm/score", content=large) for _ in range(20)]
            assert {each.status_code for each in answers} == {200, 429}
            assert all(each.content == large for each in answers)
            stack.engine.docker("kill", standins.pop())
            wait_until(lambda: _status(f"{stack.url}/vlm/score", body) == 429, 120)
            refused = await http.post(f"{stack.url}/vlm/score", content=body)
        problem = Problem.model_validate_json(refused.content)
        assert (problem.kind, problem.retry_after) == ("overloaded", 7)
        assert refused.headers["retry-after"] == "7"
    finally:
        stack.engine.docker("kill", *standins)


async def test_nothing_is_lost_when_a_replica_is_killed_under_load(stack: Stack):
    stack.up("--no-build", "--no-recreate", "--scale=code=2")
    replicas = stack.containers("code")
    assert len(replicas) == 2
    before = {replica: _results(stack, replica) for replica in replicas}
    count, done = 200, 0

    async with stack.client(timeout_s=200) as fleet:

        async def score(number: int) -> float | None:
            nonlocal done
            tests = {"kind": "stdio", "cases": [{"stdin": "", "stdout": str(number)}]}
            program = f"import time\ntime.sleep(0.1)\nprint({number})"
            result = await fleet.code.score(program, tests)
            done += 1
            return result.score

        def all_are_used() -> bool:
            return all(_results(stack, each) > before[each] for each in replicas)

        load = asyncio.gather(*map(score, range(count)))
        await asyncio.to_thread(wait_until, all_are_used, 60)
        assert done < count * 0.9
        await asyncio.to_thread(stack.engine.docker, "kill", replicas[0])
        assert done < count, "the replica was killed after the load"
        assert await load == [1.0] * count
    stack.up("--no-build", "--no-recreate", "--scale=code=1")


async def test_without_redis_caches_are_bypassed_and_stateful_calls_fail_until_it_is_back(
    stack: Stack,
):
    program = "print(sum(map(int, input().split())))"
    async with stack.client() as fleet:
        await fleet.code.score(program, SUM)
        await fleet.tools.put_budget("run", budget=0.3)
        before = await fleet.tools.update_budget("run", step=0, costs=[1.0])
        stack.compose("stop", "redis")
        uncached = await fleet.code.score("print(sum([int(x) for x in input().split()]))", SUM)
        assert (uncached.score, uncached.cached) == (1.0, False)
        assert (await fleet.tools.score(ANSWER, ANSWER)).score == 4.0
        async with stack.client(timeout_s=30) as impatient:
            with pytest.raises(Unavailable):
                await impatient.tools.update_budget("run", step=1, costs=[1.0])
        answer = httpx.get(
            f"{stack.url}/tools/budgets/run",
            headers={"authorization": f"Bearer {stack.api_key}"},
            timeout=30,
            trust_env=False,
        )
        assert (answer.status_code, answer.json()["retryable"]) == (503, True)
        stack.up("--no-build")
        after = await fleet.tools.update_budget("run", step=1, costs=[1.0])
        assert after.lambda_ > before.lambda_ > 0  # nothing is lost, and each step counts once
        # A new process has nothing in memory, so the score comes from Redis.
        unseen = "print(2 + 3)"
        wait_until(lambda: _is_cached_in_redis(stack))
        await fleet.code.score(unseen, SUM)
        stack.up("--no-build", "--force-recreate", "--no-deps", "code")
        assert (await fleet.code.score(unseen, SUM)).cached


def _is_cached_in_redis(stack: Stack) -> bool:
    """Score a new program, and return whether Redis has more keys then.

    The score is stored before the response, unless the service still skips Redis after a failure.
    """
    before = _keys_in_redis(stack)
    body = {"revision": f"print({time.monotonic_ns()})", "tests": SUM}
    headers = {"authorization": f"Bearer {stack.api_key}"}
    httpx.post(f"{stack.url}/code/score", json=body, headers=headers, trust_env=False)
    return _keys_in_redis(stack) > before


def _keys_in_redis(stack: Stack) -> int:
    return int(stack.compose("exec", "-T", "redis", "redis-cli", "dbsize"))


def _results(stack: Stack, container: str) -> float:
    """Return how many items a replica has scored."""
    program = (
        "from urllib.request import urlopen\n"
        "print(urlopen('http://127.0.0.1:8080/metrics').read().decode())"
    )
    text = stack.engine.docker("exec", container, "python", "-c", program)
    lines = [line for line in text.splitlines() if line.startswith("rewardfleet_results_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _status(url: str, body: bytes | None = None) -> int:
    """Return the status of a response; 0 without a response."""
    try:
        method = "GET" if body is None else "POST"
        return httpx.request(method, url, content=body, timeout=20, trust_env=False).status_code
    except httpx.HTTPError:
        return 0
