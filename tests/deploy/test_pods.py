"""The pods of k8s/, under their own security contexts and limits, in a container engine."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rewardfleet import RewardFleet
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..k8s.manifests import (
    K8S,
    Manifest,
    Manifests,
    build,
    container_of,
    pod_of,
    quantity,
    references,
)
from .conftest import request, status
from .engine import ROOT, STAND_INS, Engine
from .test_compose import ANSWER, PROGRAM, SUM, check_isolation

NETWORK = "rewardfleet-pods"
PASSWORD, KEY = "redis-password", "api-key"
SECRETS = {
    ("redis", "password"): PASSWORD,
    ("redis", "url"): f"redis://:{PASSWORD}@redis:6379/0",
    ("api-keys", "keys"): f"{KEY}\nmetrics-key\n",
    ("api-keys", "metrics"): "metrics-key",
}
THREAD = (
    "import threading\nthread = threading.Thread(target=print, args=(5,))\nthread.start()\n"
    "thread.join()"
)


@pytest.fixture(scope="module")
def network(engine: Engine) -> Iterator[str]:
    engine.docker("network", "rm", NETWORK, check=False)  # of a run that was killed
    engine.docker("network", "create", NETWORK)
    yield NETWORK
    engine.remove("network", "rm", NETWORK)


@pytest.fixture(scope="module")
def neighbor(engine: Engine) -> Iterator[None]:
    """A pod of another service with many threads, e.g. of vLLM."""
    start = "threading.Thread(target=time.sleep, args=(600,)).start()"
    program = f"import threading, time\nfor _ in range(400):\n    {start}"
    container = engine.docker(
        *("run", "--detach", "--network=none", "--user=10001", "--entrypoint=python"),
        *("rewardfleet:cpu", "-c", program),
    )
    yield
    engine.docker("rm", "--force", container)


def flags(manifests: Manifests, workload: Manifest, folder: Path) -> list[str]:
    """Return the options of `docker run` that do what a pod's specification says.

    Not translated, as docker has no such thing: `hostUsers`, probes, `sizeLimit` of volumes.
    """
    pod, container = pod_of(workload), container_of(workload)
    of_pod, own = pod["securityContext"], container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
    limits, profile = container["resources"]["limits"], of_pod["seccompProfile"]
    environment = manifests.environment(container)
    for each in container.get("env", ()):
        for key in references(each, "secretKeyRef"):
            environment[each["name"]] = SECRETS[key["name"], key["key"]]
    given = [
        f"--user={of_pod['runAsUser']}:{of_pod['runAsGroup']}",
        "--read-only",
        "--security-opt=no-new-privileges",
        *(f"--cap-drop={each}" for each in own["capabilities"]["drop"]),
        *(f"--cap-add={each}" for each in own["capabilities"].get("add", ())),
        f"--memory={int(quantity(limits['memory']))}",
        f"--cpus={min(quantity(limits['cpu']), os.cpu_count() or 1)}",
        *(f"--env={name}={value}" for name, value in environment.items()),
        *(
            _volume(manifests, workload, mount, folder)
            for mount in container.get("volumeMounts", ())
        ),
    ]
    if "fsGroup" in of_pod:
        given.append(f"--group-add={of_pod['fsGroup']}")
    if pod.get("shareProcessNamespace"):
        given.append("--init")
    if profile["type"] == "Localhost":
        path = ROOT / "deploy" / Path(profile["localhostProfile"]).name
        given.append(f"--security-opt=seccomp={path}")
    if own.get("procMount") == "Unmasked":
        given.append("--security-opt=systempaths=unconfined")
    arguments = (
        re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], each)
        for each in container.get("args", ())
    )
    return [*given, container["image"], *arguments]


def _volume(manifests: Manifests, workload: Manifest, mount: Manifest, folder: Path) -> str:
    """Return the option for a volume: a folder here, as the kubelet makes one on the node."""
    name, pod = mount["name"], pod_of(workload)
    (volume,) = [each for each in pod.get("volumes", ()) if each["name"] == name] or [{}]
    target = folder / workload["metadata"]["name"] / name
    target.mkdir(parents=True)
    if "emptyDir" in volume:
        target.chmod(0o777)
    elif "secret" in volume:
        secret = volume["secret"]
        for item in secret["items"]:
            (target / item["path"]).write_text(SECRETS[secret["secretName"], item["key"]])
    elif "configMap" in volume:
        data = manifests.get("ConfigMap", volume["configMap"]["name"])["data"]
        for file, content in data.items():
            (target / file).write_text(content)
    else:  # of a claim
        os.chown(target, 0, pod["securityContext"]["fsGroup"])
        target.chmod(0o2770)
    return f"--volume={target}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"


@contextmanager
def running(
    engine: Engine, overlay: str, names: list[str], folder: Path, publish: dict[str, str]
) -> Iterator[dict[str, str]]:
    """Run one pod of each workload; yield their containers.

    Args:
        publish: Ports to publish, `HOST:CONTAINER`, by workload.
    """
    manifests = build(K8S / "overlays" / overlay)
    containers: dict[str, str] = {}
    try:
        for name in names:
            workload = manifests.workload(name)
            image = container_of(workload)["image"]
            local = {"rewardfleet": "rewardfleet:cpu"} | STAND_INS
            engine.docker("tag", local[image.partition(":")[0]], image)
            ports = [f"--publish=127.0.0.1:{publish[name]}"] if name in publish else []
            containers[name] = engine.docker(
                *("run", "--detach", f"--network={NETWORK}", f"--network-alias={name}", *ports),
                *flags(manifests, workload, folder),
            )
        yield containers
    except BaseException:
        for name, container in containers.items():
            print(name, engine.docker("logs", container, check=False)[-2000:])
        raise
    finally:
        if containers:
            engine.docker("rm", "--force", *containers.values())


async def test_all_pods_of_an_overlay_work_together(engine: Engine, network: str, tmp_path: Path):
    """Through the proxy, with API keys, run state in a Redis with a password, and the jail."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    names = ["redis", *SERVICES, "proxy"]
    with running(engine, "cpu", names, tmp_path, {"proxy": f"{port}:18000"}) as containers:
        for path in ("healthz", *(f"{name}/readyz" for name in names[1:-1])):
            wait_until(lambda path=path: status("GET", f"{url}/{path}") == 200, 150)
        probe = container_of(build(K8S / "overlays/cpu").workload("redis"))["readinessProbe"]
        engine.docker("exec", containers["redis"], *probe["exec"]["command"])
        metrics = {"authorization": f"Bearer {SECRETS['api-keys', 'metrics']}"}
        answer = request("GET", f"{url}/code/metrics", headers=metrics)
        assert "rewardfleet_queue_depth" in answer.text
        for method, path in (("GET", "metrics"), ("POST", "score")):
            assert status(method, f"{url}/code/{path}", json={}) == 401
        async with RewardFleet(url, api_key=KEY) as fleet:
            score = await fleet.code.score(PROGRAM, SUM)
            assert (score.score, score.isolation) == (1.0, "landlock"), score
            await fleet.tools.put_budget("run", budget=0.3)
            assert (await fleet.tools.score(ANSWER, ANSWER, run="run")).score == 4.0
            outside = "import socket\nsocket.create_connection(('redis', 6379))\nprint(5)"
            refused = await fleet.code.score(outside, SUM)
            assert refused.score == 0 and refused.verdicts[0].verdict == "runtime_error"
        keys = engine.docker("exec", containers["redis"], "redis-cli", "dbsize")
        assert int(keys) >= 2  # a cached score, and the budget


@pytest.mark.usefixtures("neighbor")
@pytest.mark.parametrize(("overlay", "level"), [("cpu", "landlock"), ("code-userns", "bubblewrap")])
async def test_the_code_service_has_the_isolation_of_its_overlay(
    engine: Engine, network: str, tmp_path: Path, overlay: str, level: str
):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running(engine, overlay, ["code"], tmp_path, {"code": f"{port}:8080"}):
        stolen = "print(open('/run/secrets/api-keys/keys').read())\nprint(5)"
        await check_isolation(url, level, steal=stolen, api_key=KEY)
        async with RewardFleet(code=url, api_key=KEY) as fleet:
            # The limit on threads counts all of the user on the node, so the service has its own.
            threads = await fleet.code.score(THREAD, SUM)
            assert threads.score == 1.0, threads


async def test_the_code_service_refuses_to_start_below_its_level(
    engine: Engine, network: str, tmp_path: Path
):
    """With the masked /proc of other pods, bubblewrap does not work."""
    manifests = build(K8S / "overlays/code-userns")
    workload = manifests.workload("code")
    del container_of(workload)["securityContext"]["procMount"]
    (tmp_path / "files").mkdir()
    run = ("run", "--rm", "--network=none", *flags(manifests, workload, tmp_path / "files"))
    assert "programs cannot be isolated on this machine" in engine.docker(*run, check=False)
