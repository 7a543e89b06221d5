"""The manifests that kustomize builds from the folders of k8s/."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .. import debian

ROOT = Path(__file__).parent.parent.parent
K8S = ROOT / "k8s"
OVERLAYS = sorted(each.name for each in (K8S / "overlays").iterdir())
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewardfleet-kustomize"
_WORKLOADS = {"Deployment", "StatefulSet"}

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """What an overlay consists of."""

    items: list[Manifest]

    def of(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.items if each["kind"] in kinds]

    def get(self, kind: str, name: str) -> Manifest:
        found = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        assert len(found) == 1, f"there are {len(found)} {kind} {name}"
        return found[0]

    @property
    def workloads(self) -> list[Manifest]:
        return self.of(*_WORKLOADS)

    def workload(self, name: str) -> Manifest:
        found = [each for each in self.workloads if each["metadata"]["name"] == name]
        assert len(found) == 1, f"there are {len(found)} workloads {name}"
        return found[0]

    def selected(self, selector: Mapping[str, str]) -> list[Manifest]:
        """Return the workloads whose pods have these labels."""
        return [each for each in self.workloads if selector.items() <= labels_of(each).items()]

    def environment(self, container: Manifest) -> dict[str, str]:
        """Return the environment of a container; values of Secrets are empty."""
        found: dict[str, str] = {}
        for each in container.get("envFrom", ()):
            found |= self.get("ConfigMap", each["configMapRef"]["name"])["data"]
        return found | {each["name"]: each.get("value", "") for each in container.get("env", ())}


def labels_of(workload: Manifest) -> dict[str, str]:
    """Return the labels of the pods of a workload."""
    return workload["spec"]["template"]["metadata"]["labels"]


def pod_of(workload: Manifest) -> Manifest:
    """Return the specification of the pods of a workload."""
    return workload["spec"]["template"]["spec"]


def containers_of(workload: Manifest) -> list[Manifest]:
    return pod_of(workload)["containers"]


def ports_of(workload: Manifest) -> dict[str, int]:
    """Return the ports of a workload by name."""
    ports = [port for each in containers_of(workload) for port in each["ports"]]
    return {each["name"]: each["containerPort"] for each in ports}


def references(node: Any, *kinds: str) -> Iterator[Manifest]:
    """Yield what is below the keys `kinds` anywhere in a manifest, e.g. `secretKeyRef`."""
    if isinstance(node, list):
        for each in node:
            yield from references(each, *kinds)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in kinds:
                yield value
            yield from references(value, *kinds)


def find_kustomize() -> list[str]:
    """Return the command that builds; Debian's package if this machine has none.

    Raises:
        MissingTool: There is none, and it cannot be downloaded.
    """
    if own := shutil.which("kustomize"):
        return [own, "build"]
    downloaded = _CACHE / "extracted/usr/bin/kustomize"
    if not downloaded.exists():
        try:
            debian.extract(("kustomize",), _CACHE)
        except (OSError, debian.MissingTool):
            if kubectl := shutil.which("kubectl"):
                return [kubectl, "kustomize"]
            raise
    return [str(downloaded), "build"]


def build(folder: Path) -> Manifests:
    """Build a folder.

    Raises:
        AssertionError: It cannot be built.
    """
    command = [*find_kustomize(), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr  # of deprecated fields
    return Manifests(list(yaml.safe_load_all(done.stdout)))


def build_with(component: str, folder: Path) -> Manifests:
    """Build the base with one component, as users compose them.

    Args:
        component: Its name.
        folder: An empty folder for the kustomization.
    """
    k8s = os.path.relpath(K8S, folder)  # kustomize accepts no absolute path
    (folder / "kustomization.yaml").write_text(
        f"resources: [{k8s}/base]\ncomponents: [{k8s}/components/{component}]\n"
    )
    return build(folder)
