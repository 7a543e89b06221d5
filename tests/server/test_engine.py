"""The engine by itself, and the metrics of one item on every route."""

import asyncio
import gc
import logging
import re
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, JsonValue

from rewardfleet.wire.code import CodeScore, Outcome, Verdict
from rewardfleet.wire.errors import BackendFailed, DeadlineExceeded, InternalError, InvalidRequest
from rewardfleet.wire.score import Request, Score, Status, Timing
from rewardfleet_server.admission import Admission
from rewardfleet_server.cache.memory import MemoryCache
from rewardfleet_server.engine import Engine
from rewardfleet_server.http import app as http_app
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Route, Service, encode
from rewardfleet_server.observe.logs import add_request_id
from rewardfleet_server.observe.telemetry import REQUEST, RequestContext, Telemetry
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import CachePolicy, ScoringPlan
from rewardfleet_server.settings import CacheSettings
from rewardfleet_server.system.threads import run_in_thread
from rewardfleet_server.testing import serving, wait_until

from .http.test_requests import metric


class Item(Request):
    """What the test scorer does with an item."""

    behavior: str
    key: str = ""


class ScriptedScorer:
    """Scores, abstains or fails, as the item says."""

    def __init__(self) -> None:
        self.computed = 0

    async def plan(self, request: Item, upload: object = None) -> ScoringPlan[Score]:
        if request.behavior == "refused":
            raise InvalidRequest("refused when planned")

        async def compute(_: float | None) -> Score:
            self.computed += 1
            timing = Timing()
            with stage(timing, "backend"):
                await asyncio.sleep(5 if request.behavior == "slow" else 0.002)
            if request.behavior == "fails":
                raise BackendFailed("the backend failed")
            if request.behavior == "raises":
                raise RuntimeError("not a type of ours")
            score = self.computed / 100 if request.behavior == "changes" else 0.25
            status = Status.OK
            if request.behavior == "abstains":
                score, status = None, Status.ABSTAINED
            return Score(score=score, status=status, backend="scripted", timing_ms=timing)

        policy = CachePolicy((request.key,)) if request.key else None
        return ScoringPlan("scripted", compute, policy)

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        return {"backend": backend}


class Reply(BaseModel):
    reward: float | None


Scripted = Engine[Item, Score]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry("code", admission())


def admission() -> Admission:
    return Admission(max_in_flight=8, max_queue_depth=8, max_total_body_bytes=1000)


def engine(telemetry: Telemetry, **options: Any) -> Scripted:
    parts = {"scorer": ScriptedScorer(), "cache": MemoryCache(10_000), "admission": admission()}
    return Engine(**{**parts, "score_type": Score, "telemetry": telemetry, **options})


async def test_an_engine_scores_without_http(telemetry: Telemetry):
    score = await engine(telemetry).score_item(Item(behavior="scores"))
    assert (score.score, score.status, score.backend) == (0.25, "ok", "scripted")
    assert 2 <= score.timing_ms.backend <= score.timing_ms.total
    assert 'rewardfleet_results_total{backend="scripted",service="code",status="ok"} 1.0' in (
        telemetry.exposition().decode()
    )


async def test_every_failure_of_the_engine_has_a_type(telemetry: Telemetry):
    scripted = engine(telemetry)
    for behavior, kind, reason in (
        ("fails", BackendFailed, "the backend failed"),
        ("raises", InternalError, "internal error"),
        ("refused", InvalidRequest, "refused when planned"),
        ("slow", DeadlineExceeded, r"0\.05 s"),
    ):
        context = RequestContext(timeout_s=0.05 if behavior == "slow" else None)
        with pytest.raises(kind, match=reason):
            await scripted.score_item(Item(behavior=behavior), context)


async def test_the_error_of_an_item_is_part_of_its_score_in_a_batch(telemetry: Telemetry):
    items = [Item(behavior="scores"), Item(behavior="fails"), InvalidRequest("not an item")]
    context = RequestContext()
    scores = await engine(telemetry).score_batch(items, context)
    assert [score.status for score in scores] == ["ok", "error", "error"]
    assert [score.backend for score in scores] == ["scripted", "scripted", ""]
    assert scores[1].error and scores[1].error.kind == "backend_failed"
    assert scores[1].error.request_id == context.request_id
    assert scores[2].error and scores[2].error.detail == "not an item"
    assert context.items == 3


async def test_another_request_comes_before_the_items_of_a_batch_that_are_not_planned(
    telemetry: Telemetry,
):
    planned = []

    class Planner(ScriptedScorer):
        async def plan(self, request: Item, upload: object = None) -> ScoringPlan[Score]:
            planned.append(request.key)
            await asyncio.sleep(0)  # as another thread does it
            return await super().plan(request, upload)

    scripted = engine(telemetry, scorer=Planner())
    batch = [Item(behavior="scores", key=f"batch {number}") for number in range(64)]
    async with asyncio.TaskGroup() as group:
        group.create_task(scripted.score_batch(batch, RequestContext()))
        await asyncio.sleep(0)
        group.create_task(scripted.score_item(Item(behavior="scores", key="single")))
    assert planned.index("single") <= 8
    assert sorted(planned) == sorted([*(each.key for each in batch), "single"])


async def test_requests_with_the_same_id_take_turns(telemetry: Telemetry):
    order: list[str] = []
    begun = asyncio.Event()

    class Recorder(ScriptedScorer):
        async def plan(self, request: Item, upload: object = None) -> ScoringPlan[Score]:
            plan = await super().plan(request, upload)

            async def compute(timeout_s: float | None) -> Score:
                order.append(request.key)
                begun.set()
                return await plan.compute(timeout_s)

            return replace(plan, compute=compute, cache=None)

    one_at_a_time = Admission(max_in_flight=1, max_queue_depth=8, max_total_body_bytes=1000)
    scripted = engine(telemetry, scorer=Recorder(), admission=one_at_a_time)
    batch = [Item(behavior="scores", key=f"batch {number}") for number in range(6)]
    async with asyncio.TaskGroup() as group:
        group.create_task(scripted.score_batch(batch, RequestContext(request_id="chosen")))
        await begun.wait()
        single = Item(behavior="scores", key="single")
        group.create_task(scripted.score_item(single, RequestContext(request_id="chosen")))
    assert order.index("single") <= 3


async def test_a_failure_keeps_nothing_of_its_request_alive(telemetry: Telemetry):
    """A cycle through its traceback would keep uploaded files open until a collection."""

    class Upload:
        pass

    gc.disable()
    try:
        upload = Upload()
        gone = weakref.ref(upload)
        with pytest.raises(BackendFailed):
            await engine(telemetry).score_item(Item(behavior="fails"), None, upload)
        del upload
        assert gone() is None
    finally:
        gc.enable()


async def test_a_score_stored_with_other_fields_is_not_looked_up(telemetry: Telemetry):
    class Wider(Score):
        new_field: int

    cache, item = MemoryCache(10_000), Item(behavior="scores", key="k")
    old = engine(telemetry, cache=cache)
    assert [(await old.score_item(item)).cached for _ in range(2)] == [False, True]
    wider = engine(telemetry, cache=cache, score_type=Wider)
    assert not (await wider.score_item(item)).cached


# The same item on every route


def routes(scripted: Scripted) -> list[Route[Any]]:
    """A third-party wire format."""

    async def grade(item: Item, context: RequestContext) -> Reply:
        return Reply(reward=(await scripted.score_item(item, context)).score)

    return [Route("/grade", "Grade one item", Item, Reply, grade)]


#: How to send an item to each route.
ROUTES: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "/score": lambda item: item,
    "/score/batch": lambda item: {"items": [item]},
    "/grade": lambda item: item,
}


@pytest.fixture
def serve_scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., httpx.Client]]:
    with ExitStack() as stack:

        def start(audit_rate: float = 0, **settings: object) -> httpx.Client:
            monkeypatch.setattr(http_app, "_AUDIT_RATE", audit_rate)
            service = Service("code", ScriptedScorer(), Item, Score, routes=routes)
            url = stack.enter_context(serving(RewardApp(service, CacheSettings(**settings))))
            return stack.enter_context(
                httpx.Client(base_url=url, trust_env=False, verify=False, timeout=30)
            )

        yield start


def wait_for_audits(client: httpx.Client, count: int) -> None:
    """Wait until so many cached scores have been computed again and compared."""

    def audits() -> float:
        return sum(n for name, n in item_metrics(client).items() if "cache_audits" in name)

    wait_until(lambda: audits() == count)


def item_metrics(client: httpx.Client) -> dict[str, float]:
    """Return every series that counts items, without the times that differ from run to run."""
    counted = re.compile(
        r"rewardfleet_(?:results_total|score_(?:bucket|count|sum)|stage_duration_seconds_count|"
        r"cache_\w+_total)\{.*"
    )
    lines = [line for line in client.get("/metrics").text.splitlines() if counted.match(line)]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("behavior", ["scores", "abstains", "fails", "raises", "refused"])
def test_an_item_has_the_same_metrics_on_every_route(serve_scripted, behavior: str):
    found = {}
    for path, body in ROUTES.items():
        client = serve_scripted()
        client.post(path, json=body({"behavior": behavior}))
        found[path] = item_metrics(client)
    assert found["/score"]
    assert found["/score"] == found["/score/batch"] == found["/grade"]
    status = {"scores": "ok", "abstains": "abstained"}.get(behavior, "error")
    assert sum(n for name, n in found["/score"].items() if f'status="{status}"' in name) == 1


def test_an_invalid_item_has_the_same_metrics_alone_and_in_a_batch(serve_scripted):
    found = []
    for path, body in (("/score", {}), ("/score/batch", {"items": [{}]})):
        client = serve_scripted()
        client.post(path, json=body)
        found.append(item_metrics(client))
    assert found[0] == found[1]
    assert found[0]['rewardfleet_results_total{backend="",service="code",status="error"}'] == 1


@pytest.mark.parametrize("audit_rate", [0, 1])
def test_a_cached_and_an_audited_item_have_the_same_metrics_on_every_route(
    serve_scripted, audit_rate: int
):
    found = {}
    for path, body in ROUTES.items():
        client = serve_scripted(audit_rate=audit_rate)
        for _ in range(2):
            assert client.post(path, json=body({"behavior": "scores", "key": "k"})).is_success
        wait_for_audits(client, audit_rate)
        found[path] = item_metrics(client)
    assert found["/score"] == found["/score/batch"] == found["/grade"]
    metrics = found["/score"]
    assert metrics['rewardfleet_cache_lookups_total{result="hit",service="code"}'] == 1
    assert metrics['rewardfleet_cache_lookups_total{result="miss",service="code"}'] == 1
    assert metrics['rewardfleet_cache_audits_total{result="disagree",service="code"}'] == 0


@pytest.mark.slow
def test_an_audit_on_any_route_finds_a_score_that_changed(serve_scripted):
    for path, body in ROUTES.items():
        client = serve_scripted(audit_rate=1)
        for _ in range(2):
            assert client.post(path, json=body({"behavior": "changes", "key": "k"})).is_success
        wait_for_audits(client, 1)
        disagree = 'rewardfleet_cache_audits_total{result="disagree",service="code"}'
        assert item_metrics(client)[disagree] == 1, path
        lookups = 'rewardfleet_cache_lookups_total{result="miss",service="code"}'
        client.post(path, json=body({"behavior": "changes", "key": "k"}))
        assert item_metrics(client)[lookups] == 2, "the score was evicted"


@pytest.mark.slow
async def test_an_audit_neither_delays_a_cached_score_nor_makes_it_fail(telemetry: Telemetry):
    scripted = engine(telemetry, audit_rate=1.0)
    for behavior in ("slow", "fails"):  # when it is computed again; the key is the same
        await scripted.score_item(Item(behavior="scores", key=behavior))
        item = Item(behavior=behavior, key=behavior)
        score = await scripted.score_item(item, RequestContext(timeout_s=4.5))
        assert (score.score, score.cached) == (0.25, True)
        assert score.timing_ms.total < 4000
    await asyncio.gather(*scripted._audits._running)  # failures are logged, and not raised
    counts = re.findall(r"cache_audits_total\{.*\} ([\d.]+)", telemetry.exposition().decode())
    assert counts == ["0.0", "0.0"]


@pytest.mark.parametrize(("share", "count"), [(1e-9, 1), (1e9, 2)])
async def test_audits_take_a_small_share_of_the_time(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, share: float, count: int
):
    monkeypatch.setattr("rewardfleet_server.cache.scores._AUDIT_SHARE", share)
    scripted = engine(telemetry, audit_rate=1.0)
    await scripted.score_item(Item(behavior="scores", key="k"))
    for _ in range(2):
        assert (await scripted.score_item(Item(behavior="scores", key="k"))).cached
        await asyncio.gather(*scripted._audits._running)
    assert f'result="agree",service="code"}} {count}.0' in telemetry.exposition().decode()


async def test_items_are_not_audited_at_the_expense_of_requests(telemetry: Telemetry):
    scripted = engine(telemetry, audit_rate=1.0)
    item = Item(behavior="scores", key="k")
    await scripted.score_item(item)
    busy = [
        asyncio.create_task(scripted.score_item(Item(behavior="slow", key=str(n))))
        for n in range(8)
    ]
    async with asyncio.timeout(30):
        while (before := scripted.scorer.computed) < 9:
            await asyncio.sleep(0)
    assert (await scripted.score_item(item)).cached
    await asyncio.sleep(0.05)
    assert scripted.scorer.computed == before
    for task in busy:
        task.cancel()


@pytest.mark.slow
def test_in_flight_items_are_those_that_hold_a_permit(serve_scripted):
    """One meaning: `max_in_flight` is the limit of `rewardfleet_in_flight_items`."""
    client = serve_scripted(max_in_flight=2)
    body = {"items": [{"behavior": "slow"}] * 5}

    with pytest.raises(httpx.ReadTimeout):
        client.post("/score/batch", json=body, timeout=1)
    wait_until(lambda: metric(client, "rewardfleet_in_flight_items{") == 0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            client.post, "/score/batch", json=body, headers={"x-request-timeout": "4"}
        )
        names = ("in_flight_items", "queue_depth", "admitted_requests")
        wait_until(lambda: [metric(client, f"rewardfleet_{each}{{") for each in names] == [2, 3, 1])
        assert running.result().is_success


@pytest.mark.parametrize("number", [0.1, 2**70])
def test_scores_are_encoded_as_pydantic_encodes_them(number: float):
    verdicts = [Verdict(verdict=Outcome.ACCEPTED, stdout="\u00e9\n", cpu_ms=0.1)]
    score = CodeScore(
        score=1.0, status=Status.OK, verdicts=verdicts, provenance={"judge": [number, None]}
    )
    assert encode(score) == score.model_dump_json().encode()


async def test_log_lines_of_threads_keep_the_request_id(caplog: pytest.LogCaptureFixture):
    REQUEST.set(RequestContext(request_id="the-request"))
    record = logging.LogRecord("x", logging.INFO, "", 0, "message", None, None)
    with ThreadPoolExecutor(1) as pool:
        await run_in_thread(pool, lambda: add_request_id(record))
    assert record.request_id == "the-request"


async def test_a_stage_can_be_ended_from_a_thread():
    timing = Timing()
    with stage(timing, "queue") as queue:
        await asyncio.to_thread(queue.stop)
        before = timing.queue
        await asyncio.sleep(0.02)
    assert timing.queue == before
