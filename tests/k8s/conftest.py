"""The manifests of every overlay and component; only for `pytest -m k8s`."""

import pytest

from .manifests import COMPONENTS, K8S, OVERLAYS, Manifests, build, build_text


@pytest.fixture(scope="session")
def overlays() -> dict[str, Manifests]:
    return {name: build(K8S / "overlays" / name) for name in OVERLAYS}


@pytest.fixture(scope="session")
def components(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifests]:
    """Those of the base with one component only, as users compose them."""
    text = "resources: [rewardfleet/k8s/base]\ncomponents: [rewardfleet/k8s/components/{}]\n"
    return {
        name: build_text(text.format(name), tmp_path_factory.mktemp(name)) for name in COMPONENTS
    }


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, overlays: dict[str, Manifests]) -> Manifests:
    return overlays[request.param]
