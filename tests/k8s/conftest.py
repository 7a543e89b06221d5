"""The manifests of every overlay and component; only for `pytest -m k8s`."""

from pathlib import Path

import pytest

from .manifests import COMPONENTS, K8S, OVERLAYS, Manifests, build, build_text


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "k8s" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.k8s)


@pytest.fixture(scope="session")
def overlays() -> dict[str, Manifests]:
    """The manifests of each overlay."""
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
