"""The manifests that kustomize builds from the folders of k8s/."""

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from .. import debian

ROOT = Path(__file__).parent.parent.parent
K8S = ROOT / "k8s"
OVERLAYS = sorted(each.name for each in (K8S / "overlays").iterdir())
COMPONENTS = sorted(each.name for each in (K8S / "components").iterdir())
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rewardfleet-kustomize"
_UNITS = {"Gi": 2**30, "Mi": 2**20, "m": 1e-3, "": 1.0}

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    items: list[Manifest]

    def of(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.items if each["kind"] in kinds]

    def get(self, kind: str, name: str) -> Manifest:
        return _only(self.of(kind), name)

    @property
    def workloads(self) -> list[Manifest]:
        return self.of("Deployment", "StatefulSet")

    def workload(self, name: str) -> Manifest:
        return _only(self.workloads, name)

    def selected(self, selector: Mapping[str, str]) -> list[Manifest]:
        """Return the workloads whose pods have these labels."""
        return [each for each in self.workloads if selector.items() <= labels_of(each).items()]

    def services(self) -> list[Manifest]:
        return self.selected({"app.kubernetes.io/component": "service"})

    def environment(self, container: Manifest) -> dict[str, str]:
        """Return the environment of a container; values of Secrets are empty."""
        found: dict[str, str] = {}
        for each in container.get("envFrom", ()):
            found |= self.get("ConfigMap", each["configMapRef"]["name"])["data"]
        return found | {each["name"]: each.get("value", "") for each in container.get("env", ())}


def _only(manifests: list[Manifest], name: str) -> Manifest:
    found = [each for each in manifests if name_of(each) == name]
    assert len(found) == 1, f"there are {len(found)} {name}"
    return found[0]


def name_of(manifest: Manifest) -> str:
    return manifest["metadata"]["name"]


def names_of(manifests: list[Manifest]) -> set[str]:
    return {name_of(each) for each in manifests}


def labels_of(workload: Manifest) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def pod_of(workload: Manifest) -> Manifest:
    return workload["spec"]["template"]["spec"]


def container_of(workload: Manifest) -> Manifest:
    """Return the only container of the pods of a workload."""
    (container,) = pod_of(workload)["containers"]
    return container


def ports_of(workload: Manifest) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container_of(workload)["ports"]}


def quantity(text: object) -> float:
    """Return a quantity of Kubernetes in bytes or cores."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()
    return float(number) * _UNITS[unit]


def references(node: Any, *kinds: str) -> Iterator[Manifest]:
    """Yield what is below the keys `kinds` anywhere in a manifest, e.g. `secretKeyRef`."""
    pairs = node.items() if isinstance(node, dict) else [("", each) for each in node]
    for key, value in pairs:
        if key in kinds:
            yield value
        if isinstance(value, dict | list):
            yield from references(value, *kinds)


def changed(node: Any, path: str, value: object) -> Any:
    """Return a copy with another value at a path, e.g. `spec.ports.0.port`."""
    result = copy.deepcopy(node)
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    reduce(getitem, parents, result)[last] = value
    return result


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


def build_text(text: str, folder: Path) -> Manifests:
    """Build a kustomization that names folders below `rewardfleet/k8s`, in an empty folder."""
    assert "rewardfleet/k8s" in text
    k8s = os.path.relpath(K8S, folder)  # kustomize accepts no absolute path
    (folder / "kustomization.yaml").write_text(text.replace("rewardfleet/k8s", k8s))
    return build(folder)
