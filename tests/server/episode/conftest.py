"""Fixtures: the episode service over real HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from rewardfleet_server.episode.app import create_app
from rewardfleet_server.episode.settings import EpisodeSettings

from ...conftest import client_of


@contextmanager
def served_episodes(**settings: object) -> Iterator[httpx.Client]:
    with client_of(create_app(EpisodeSettings(**settings))) as client:
        yield client


@pytest.fixture(scope="module")
def service() -> Iterator[httpx.Client]:
    with served_episodes() as client:
        yield client


def post_batch(service: httpx.Client, items: list[dict], **fields: object) -> dict:
    response = service.post("/score/batch", json={"items": items, **fields})
    assert response.status_code == 200, response.text
    return response.json()
