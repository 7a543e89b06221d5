"""The manifests of every overlay; only for `pytest -m k8s`."""

import pytest

from .manifests import K8S, OVERLAYS, Manifests, build


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "k8s" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.k8s)


@pytest.fixture(scope="session")
def overlays() -> dict[str, Manifests]:
    """The manifests of each overlay."""
    return {name: build(K8S / "overlays" / name) for name in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, overlays: dict[str, Manifests]) -> Manifests:
    return overlays[request.param]
