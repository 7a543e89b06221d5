"""Fixtures: the episode service over real HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from rewardfleet_server.episode.app import create_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.testing import serving


@contextmanager
def served_episodes(**settings: object) -> Iterator[httpx.Client]:
    app = create_app(EpisodeSettings(**settings))
    with (
        serving(app) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False, verify=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def service() -> Iterator[httpx.Client]:
    with served_episodes() as client:
        yield client


def post_batch(service: httpx.Client, items: list[dict], **fields: object) -> dict:
    response = service.post("/score/batch", json={"items": items, **fields})
    assert response.status_code == 200, response.text
    return response.json()
