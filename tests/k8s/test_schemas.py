"""Every manifest is valid by the schemas of Kubernetes and of custom resources."""

import json
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from ..conftest import table
from .manifests import Manifest, Manifests, changed, container_of

CRDS = Path(__file__).parent.parent / "data" / "crds"
#: The oldest version that is supported, and the newest one whose schemas are available.
VERSIONS = ("1.34", kubernetes_validate.latest_version())


def validate(manifest: Manifest, version: str = VERSIONS[0]) -> None:
    """Check the kind, and all fields.

    Raises:
        jsonschema.ValidationError: A field is unknown or has the wrong type.
        kubernetes_validate.SchemaNotFoundError: The kind is unknown.
    """
    group, _, api_version = manifest["apiVersion"].rpartition("/")
    schema = CRDS / f"{manifest['kind'].lower()}_{api_version}.json"
    if group in {"keda.sh", "monitoring.coreos.com"} and schema.exists():
        schema_of(schema).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@cache
def schema_of(path: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(path.read_text()))


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(
    overlays: dict[str, Manifests], components: dict[str, Manifests], version: str
):
    builds = [*overlays.values(), *components.values()]
    for manifest in {json.dumps(each): each for one in builds for each in one.items}.values():
        validate(manifest, version)
        is_namespace = manifest["kind"] == "Namespace"
        assert is_namespace or manifest["metadata"]["namespace"] == "rewardfleet", manifest
    for one in builds:
        for workload in one.workloads:
            one.environment(container_of(workload))  # its ConfigMaps exist, with their digests


@pytest.mark.parametrize(("kind", "name", "path", "value"), table("manifest_faults"))
def test_a_fault_is_found(
    overlays: dict[str, Manifests], kind: str, name: str, path: str, value: object
):
    manifest = overlays["keda"].get(kind, name)
    validate(manifest)
    with pytest.raises(jsonschema.ValidationError):
        validate(changed(manifest, path, value))


@pytest.mark.parametrize("api_version", ["keda.sh/v1alpha1", "v1"])
def test_an_unknown_kind_is_a_fault(api_version: str):
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate({"apiVersion": api_version, "kind": "Scaled", "metadata": {}})
