"""Fixtures: the answers service over real HTTP."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from rewardfleet_server.answers.app import create_app
from rewardfleet_server.answers.settings import AnswersSettings

from ...conftest import client_of


@contextmanager
def served_answers(**settings: object) -> Iterator[httpx.Client]:
    with client_of(create_app(AnswersSettings(**{"workers": 1, **settings}))) as client:
        yield client


@pytest.fixture(scope="package")
def service() -> Iterator[httpx.Client]:
    with served_answers() as client:
        yield client


def score(client: httpx.Client, response: object, reference: object, **fields: object) -> Any:
    body = {"response": response, "reference": reference, **fields}
    answered = client.post("/score", json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def metric(client: httpx.Client, name: str) -> float:
    """Return the sum of a metric of the service."""
    lines = re.findall(rf"(?m)^rewardfleet_{name}(?:\{{.*\}})? (\S+)$", client.get("/metrics").text)
    return sum(map(float, lines))
