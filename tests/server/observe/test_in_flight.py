"""`GET /inflight`: what training waits for, of services that work, hang, and are at capacity."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from rewardfleet.wire.in_flight import MAX_LISTED
from rewardfleet_server.episode.api import EpisodeApi
from rewardfleet_server.episode.app import create_app as create_episode_app
from rewardfleet_server.episode.settings import EpisodeSettings
from rewardfleet_server.http.dispatch import list_samples
from rewardfleet_server.observe.telemetry import RequestContext
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.scorer import ToolsScorer
from rewardfleet_server.tools.settings import ToolsSettings

from ...conftest import Serve, client_of, image_base64
from ..http.raw import connect_to, head

ANSWER = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
IMAGE = image_base64()
IMAGE_BYTES = base64.b64decode(IMAGE)


def listed(client: httpx.Client, path: str = "/inflight") -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def body(task: int = 0) -> dict[str, Any]:
    return {"task_text": f"task {task}", "frames_base64": [IMAGE]}


@contextmanager
def posting(client: httpx.Client, path: str, *bodies: object, **headers: str) -> Iterator[None]:
    """Send requests that have no answer yet, and disconnect at the end of the block."""
    with ExitStack() as stack:
        for each in bodies:
            content = json.dumps(each).encode()
            lines = [f"{name}: {value}" for name, value in headers.items()]
            caller = stack.enter_context(connect_to(str(client.base_url)))
            caller.sendall(head(len(content), *lines, path=path) + content)
        yield


@pytest.mark.slow
def test_a_hung_judge_is_listed_in_its_stage_with_its_age(serve: Serve):
    client = serve(FakeJudge(wait_s=30))
    hurried = {"x-request-timeout": "6", "x-request-id": "hung"}
    with posting(client, "/score", body(), **hurried):
        found: dict[str, Any] = {}

        def hangs() -> bool:
            found.update(listed(client))
            return any(e["stage"] == "backend" and e["stage_s"] > 0.05 for e in found["samples"])

        wait_until(hangs)
        assert (found["total"], found["failures"]) == (1, {})
        (sample,) = found["samples"]
        assert {name: sample[name] for name in ("service", "request_id", "path", "backend")} == {
            "service": "video", "request_id": "hung", "path": "/score", "backend": "fake",
        }  # fmt: skip
        assert (sample["stage"], sample["items"]) == ("backend", 1)
        assert sample["replica"] == socket.gethostname()
        assert 0.05 < sample["stage_s"] <= sample["age_s"]
        assert sample["age_s"] + sample["remaining_s"] == pytest.approx(6, abs=0.01)
        assert "task 0" not in json.dumps(found)
        wait_until(lambda: listed(client)["samples"] == [])  # its deadline has passed


def test_items_of_a_batch_are_samples_of_their_own_also_at_capacity(serve: Serve):
    client = serve(FakeJudge(wait_s=30), max_in_flight=1, max_queue_depth=2)
    batch = {"items": [body(n) for n in range(3)]}
    full = 3 * ["backend"] + 6 * ["queue"]  # the batches share the computations of their items
    with posting(client, "/score/batch", batch, batch, batch):
        wait_until(lambda: sorted(e["stage"] for e in listed(client)["samples"]) == full)
        assert client.post("/score", json=body(9)).status_code == 429
        samples = listed(client)["samples"]
        assert {each["path"] for each in samples} == {"/score/batch"}
        assert sorted(each["stage"] for each in samples) == full
        ages = [each["age_s"] for each in samples]
        assert ages == sorted(ages, reverse=True)
    wait_until(lambda: listed(client)["total"] == 0)


def test_a_shared_computation_is_listed_for_each_request_that_waits_for_it(serve: Serve):
    """Also when the request that started it has disconnected."""
    client = serve(FakeJudge(wait_s=30))

    def stages() -> list[str]:
        return [each["stage"] for each in listed(client)["samples"]]

    with ExitStack() as first:
        first.enter_context(posting(client, "/score", body()))
        wait_until(lambda: stages() == ["backend"])
        with posting(client, "/score", body()):
            wait_until(lambda: stages() == ["backend", "backend"])
            first.close()
            wait_until(lambda: stages() == ["backend"])
    wait_until(lambda: stages() == [])


def test_a_body_that_stalls_is_listed(serve: Serve):
    client = serve()
    with connect_to(str(client.base_url)) as caller:
        caller.sendall(head(1000) + b"{")
        wait_until(lambda: listed(client)["total"] == 1)
        (sample,) = listed(client)["samples"]
        assert (sample["stage"], sample["backend"]) == ("body", "")
    wait_until(lambda: listed(client)["total"] == 0)


@pytest.mark.parametrize("service", ["tools", "episode"])
def test_a_batch_that_is_scored_as_a_whole_is_one_entry(service: str, monkeypatch):
    release = threading.Event()

    async def hang(*_: object) -> None:
        await asyncio.to_thread(release.wait, 60)
        raise asyncio.CancelledError

    if service == "tools":
        monkeypatch.setattr(ToolsScorer, "prepare", hang)
        app, item = create_tools_app(ToolsSettings()), {"response": "x", "ground_truth": "y"}
    else:
        monkeypatch.setattr(EpisodeApi, "_in_thread", hang)
        app, item = create_episode_app(EpisodeSettings()), {"kind": "success", "success": True}
    items = [{**item, **({"uid": str(n)} if service == "episode" else {})} for n in range(5)]
    with client_of(app) as client, posting(client, "/score/batch", {"items": items}):
        try:
            wait_until(lambda: listed(client)["total"] == 5)
            (sample,) = listed(client)["samples"]
            assert (sample["service"], sample["items"]) == (service, 5)
            assert sample["stage"] == "backend"
        finally:
            release.set()


def test_the_oldest_are_listed_with_the_total():
    contexts = [RequestContext("/score/batch", f"r{n}") for n in range(3)]
    for context in contexts[:2]:
        for _ in range(MAX_LISTED - 300):
            context.begin()
    contexts[2].begin(items=50)
    found = list_samples("video", contexts)
    assert found.total == 2 * (MAX_LISTED - 300) + 50
    assert len(found.samples) == MAX_LISTED
    assert {each.request_id for each in found.samples} == {"r0", "r1"}
