"""Fixtures: the episode service over real HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from rewardfleet_server.episode.app import create_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.run_state import redis as redis_store

from ...conftest import client_of


@contextmanager
def served_episodes(**settings: object) -> Iterator[httpx.Client]:
    with client_of(create_app(EpisodeSettings(**settings))) as client:
        yield client


@pytest.fixture
def patient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for commands of Redis, also on a busy machine."""
    monkeypatch.setattr(redis_store, "_COMMAND_SECONDS", 30)
    monkeypatch.setattr(redis_store, "BUSY_SECONDS", 60)


@pytest.fixture(scope="module")
def service() -> Iterator[httpx.Client]:
    with served_episodes() as client:
        yield client


def post_batch(service: httpx.Client, items: list[dict], **fields: object) -> dict:
    response = service.post("/score/batch", json={"items": items, **fields})
    assert response.status_code == 200, response.text
    return response.json()
