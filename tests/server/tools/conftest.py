"""Fixtures: the tools service over real HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from ...conftest import client_of


@contextmanager
def served_tools(**settings: object) -> Iterator[httpx.Client]:
    with client_of(create_app(ToolsSettings(**settings))) as client:
        yield client


@pytest.fixture(scope="module")
def service() -> Iterator[httpx.Client]:
    with served_tools() as client:
        yield client


def call(name: str = "web_search", **parameters: object) -> str:
    return json.dumps({"name": name, "parameters": parameters})


def answer(*calls: str, think: str = "plan") -> str:
    return "\n".join([f"<think>{think}</think>", "<tool_call>", *calls, "</tool_call>"])


#: A correct answer with one call of a search tool.
TRUTH = answer(call(query="x", limit=3))


def update(service: httpx.Client, run: str, step: int, **fields: object) -> dict:
    body = {"step": step, "part": "all", **fields}
    response = service.post(f"/budgets/{run}/update", json=body)
    assert response.status_code == 200, response.text
    return response.json()
