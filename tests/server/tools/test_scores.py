"""The tools service over real HTTP: scores."""

import asyncio
import json
import threading
from pathlib import Path

import httpx
import pytest

from rewardfleet import RewardFleet, tools_request
from rewardfleet.tool_use.usage import read_families
from rewardfleet.wire.errors import Conflict, InvalidRequest, NotFound
from rewardfleet.wire.tools import ToolsRequest, ToolsScore
from rewardfleet_server.scorer import ScoreFields
from rewardfleet_server.tools.budgets import Price
from rewardfleet_server.tools.scorer import ToolsScorer

from ...conftest import JSON, table
from .conftest import TRUTH, answer, call, served_tools, update


def score(service: httpx.Client, response: str, **fields: object) -> dict:
    body = {"response": response, "ground_truth": TRUTH, **fields}
    answered = service.post("/score", json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_an_answer_has_components_and_usage(service: httpx.Client):
    text = answer(
        call(query="x", limit=3), call("calculator", e="1+1"), call("calculator", e="1+1")
    )
    result = score(service, text, options={"cost": "calls"})
    correctness = pytest.approx(-3 + 6 * 4 / 7)
    assert result["components"] == {"format": 1.0, "correctness": correctness}
    assert result["details"] == {"task": result["score"], "cost": 3.0}
    assert result["tools"] == {"search": {"web_search": 1}, "calculate": {"calculator": 2}}
    usage = {name: result[name] for name in ("calls", "repeats", "used_any_tool", "used_search")}
    assert usage == {"calls": 3, "repeats": 1, "used_any_tool": True, "used_search": True}
    assert result["used_calculate"] is True


def test_schemas_in_openais_form_decide_on_values_without_types(service: httpx.Client):
    written = "<parameter=query>\n7\n</parameter>\n<parameter=limit>\n3\n</parameter>\n"
    written = f"<tool_call>\n<function=web_search>\n{written}</function>\n</tool_call>"
    text = f"<think>plan</think>\n{written}"
    properties = {"query": {"type": "string"}, "limit": {"type": "integer"}}
    function = {"name": "web_search", "parameters": {"properties": properties}, "strict": True}
    tools = [{"type": "function", "function": function}]
    for given, untyped in (([], 2), ([{"name": "web_search"}], 2), (tools, 0)):
        result = score(service, text, tools=given, ground_truth=answer(call(query="7", limit=3)))
        found = (result["score"], result["dialect"], result["untyped"], result["calls"])
        assert found == (4.0, "qwen3_coder", untyped, 1)
    body = {
        "response": text,
        "ground_truth": TRUTH,
        "tools": [{"type": "function", "function": {}}],
    }
    refused = service.post("/score", json=body)
    assert (refused.status_code, "tools.0.name" in refused.text) == (422, True)


def test_the_answers_of_a_batch_that_the_deadline_leaves_no_time_for_fail_alone(monkeypatch):
    """Also while one of them hangs. Each is counted, and observed, once."""
    release, score_one = threading.Event(), ToolsScorer.score

    def hang(self: ToolsScorer, request: ToolsRequest, price: Price | None) -> ScoreFields:
        if request.response == "hang":
            release.wait(60)
        return score_one(self, request, price)

    monkeypatch.setattr(ToolsScorer, "score", hang)
    monkeypatch.setattr("rewardfleet_server.engine._SMALL_BATCH", 0)
    texts = [TRUTH, "", "hang", TRUTH]
    items = [{"response": text, "ground_truth": TRUTH} for text in texts]
    items.insert(1, {"response": 5, "ground_truth": TRUTH})
    with served_tools(deadline_s=2) as service:
        try:
            answered = service.post("/score/batch", json={"items": items})
        finally:
            release.set()
        metrics = service.get("/metrics").text
    assert answered.status_code == 200
    results = answered.json()["results"]
    kinds = [each.get("error", {}).get("kind") for each in results]
    assert kinds == [None, "invalid", None, "deadline_exceeded", "deadline_exceeded"]
    assert [each["score"] is None for each in results] == [False, True, False, True, True]
    count = 'rewardfleet_stage_duration_seconds_count{service="tools",stage="%s"} %s'
    for stage, observed in (("total", 5.0), ("queue", 2.0), ("backend", 2.0)):
        assert count % (stage, observed) in metrics


def test_the_time_of_a_batch_is_measured_per_answer():
    items = [{"response": TRUTH, "ground_truth": TRUTH}] * 100
    with served_tools() as service:
        assert service.post("/score/batch", json={"items": items}).status_code == 200
        metrics = service.get("/metrics").text
    measured = 'rewardfleet_stage_duration_seconds_%s{service="tools",stage="backend"} '
    count, total = (
        float(metrics.split(measured % kind)[1].split("\n")[0]) for kind in ("count", "sum")
    )
    assert count == 100
    assert total / 100 < 0.05, "an answer takes microseconds"


def test_a_batch_gets_the_scores_of_single_answers(service: httpx.Client):
    items = [
        {"response": TRUTH, "ground_truth": TRUTH},
        {"response": "", "ground_truth": TRUTH},
        {"response": TRUTH, "ground_truth": TRUTH, "options": {"variant": "toolrl"}},
        {"response": TRUTH, "ground_truth": TRUTH, "tool_families": {"web_search": "calculate"}},
        {"response": TRUTH, "ground_truth": TRUTH, "step": 3,
         "options": {"with_length": True, "schedule_length": True}},
        {"response": answer(call("x")), "ground_truth": TRUTH,
         "tools": [{"name": "x", "description": "Convert units"}]},
    ]  # fmt: skip
    batch = service.post("/score/batch", json={"items": items}).json()["results"]
    for item, result in zip(items, batch, strict=True):
        single = ToolsScore.model_validate(service.post("/score", json=item).json())
        together = ToolsScore.model_validate(result)
        ignored = {"timing_ms", "provenance"}
        assert single.model_dump(exclude=ignored) == together.model_dump(exclude=ignored)
    assert batch[5]["used_calculate"] is True


def test_an_item_that_fails_does_not_fail_the_others(service: httpx.Client):
    items, reasons, kinds = zip(*table("failing_answers"), strict=True)
    items = [{"response": TRUTH, "ground_truth": TRUTH}, *items]
    first, *results = service.post("/score/batch", json={"items": items}).json()["results"]
    assert first["score"] == 4.0
    for result, reason, kind in zip(results, reasons, kinds, strict=True):
        assert (result["score"], result["error"]["kind"]) == (None, kind)
        assert reason in result["error"]["detail"]


@pytest.mark.parametrize(
    "text",
    ["", "\0", "{", "<tool_call>", "</think>" * 1000, "\N{GRINNING FACE}", "x" * 1_000_001,
     answer(call("\ud800")), "<tool_call>" + "[" * 200_000],
    ids=["empty", "NUL", "brace", "open", "closed", "emoji", "too long", "surrogate", "deep"],
)  # fmt: skip
def test_any_text_of_a_policy_gets_a_low_reward(service: httpx.Client, text: str):
    single = score(service, text)
    assert -3 <= single["score"] <= -2
    items = [{"response": text, "ground_truth": TRUTH}]
    (result,) = service.post("/score/batch", json={"items": items}).json()["results"]
    assert result["score"] == single["score"]


def test_a_lone_surrogate_in_the_body_is_part_of_the_text(service: httpx.Client):
    item = '{"response": "\\ud800' + json.dumps(TRUTH)[1:] + ', "ground_truth": '
    item += json.dumps(TRUTH) + "}"
    single = service.post("/score", content=item, headers=JSON).json()
    batch = service.post("/score/batch", content=f'{{"items": [{item}]}}', headers=JSON).json()
    assert single["components"]["correctness"] == 3.0
    assert batch["results"][0]["score"] == single["score"] == 3.0


def test_nan_fails_its_item_only(service: httpx.Client):
    item = {"response": TRUTH, "ground_truth": TRUTH}
    items = [item, {**item, "options": {"cost_weights": {"search": float("nan")}}}, item]
    body = json.dumps({"items": items})
    assert "NaN" in body
    answered = service.post("/score/batch", content=body, headers=JSON)
    first, second, third = answered.json()["results"]
    assert first["score"] == third["score"] == 4.0
    assert "cost_weights.search" in second["error"]["detail"]


PATTERNS = {"family_patterns": {"search": [f"*{n}*" for n in range(101)]}}
MANY_PATTERNS = {"response": TRUTH, "ground_truth": TRUTH, "options": PATTERNS}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        *(("/score/batch", *row) for row in table("not_batches")),
        ("/score", MANY_PATTERNS, "at most 100 items"),
    ],
)
def test_what_is_not_a_request_is_refused(
    service: httpx.Client, path: str, body: object, reason: str
):
    response = service.post(path, json=body)
    assert response.status_code == 422
    assert reason in response.json()["detail"]


def test_the_score_of_a_run_pays_for_tools(service: httpx.Client):
    options = {"controller": "dual_ascent", "initial_lambda": 2, "budget": 0.25, "parts": 1}
    service.put("/budgets/paid", json=options)
    result = score(service, TRUTH, run="paid")
    assert (result["score"], result["details"]["lambda"]) == (2.0, 2.0)
    assert result["details"]["violation"] == 0.75
    update(service, "paid", 0, mean_cost=0.0, count=8)
    items = [{"response": text, "ground_truth": TRUTH, "run": "paid"} for text in (TRUTH, "")]
    first, second = service.post("/score/batch", json={"items": items}).json()["results"]
    assert first["score"] == pytest.approx(4 - (2 - 0.05 * 0.25))
    assert second["details"]["violation"] == -0.25


def test_a_file_of_families(tmp_path: Path):
    path = tmp_path / "families.json"
    path.write_text('{"web_search": "calculate", "f": "other"}')
    with served_tools(tool_families=path) as service:
        assert score(service, TRUTH)["tools"] == {"calculate": {"web_search": 1}}
        mapped = score(service, TRUTH, options={"families": {"web_search": "other"}})
        assert mapped["tools"] == {"other": {"web_search": 1}}


@pytest.mark.parametrize(("content", "reason"), table("family_files"))
def test_a_file_of_families_that_cannot_be_used(tmp_path: Path, content: str, reason: str):
    path = tmp_path / "families.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"--tool-families .*{reason}"):
        read_families(path)


# The client


@pytest.fixture
def url(service: httpx.Client) -> str:
    return str(service.base_url)


async def test_the_client_scores_and_keeps_a_budget(url: str):
    async with RewardFleet(tools=url) as fleet:
        run = "client/run ü"
        created = await fleet.tools.put_budget(
            run, budget=0.5, controller="dual_ascent", eta=1.0, parts=1
        )
        assert (created.lambda_, created.options.budget) == (0.0, 0.5)
        assert (await fleet.tools.update_budget(run, 0, [1, 1], mean_task_reward=3)).lambda_ == 0.5
        budget = await fleet.tools.budget(run)
        assert (budget.run, budget.lambda_, budget.mean_task_reward) == (run, 0.5, 3.0)
        assert await fleet.tools.reward(TRUTH, TRUTH, run=run) == 3.5
        requests = [tools_request(TRUTH, TRUTH, run=run), tools_request("", TRUTH)]
        assert await fleet.tools.rewards(requests) == [3.5, -3.0]
        with pytest.raises(NotFound, match="no budget"):
            await fleet.tools.budget("nobody")
        with pytest.raises(InvalidRequest, match="eta"):
            await fleet.tools.put_budget(run, eta=0)
        for name in ("", "x" * 201, ".", "..", "\ud800"):
            with pytest.raises(InvalidRequest, match="run: "):
                await fleet.tools.budget(name)
        resumed = await fleet.tools.put_budget(run, checkpoint=created.checkpoint)
        assert resumed.lambda_ == 0.0


async def test_calls_without_a_part_are_parts(url: str):
    """Eight workers report one answer each; one repeats its call with a part of its own."""
    async with RewardFleet(tools=url) as fleet:
        await fleet.tools.put_budget("eight", budget=0.3, controller="dual_ascent", eta=1, parts=8)
        updates = await asyncio.gather(
            *(fleet.tools.update_budget("eight", 0, [cost]) for cost in [0, *[1] * 6]),
            *(fleet.tools.update_budget("eight", 0, [1], part="w") for _ in range(3)),
        )
        assert sum(each.closed for each in updates) in {1, 3}
        assert (await fleet.tools.budget("eight")).lambda_ == pytest.approx(7 / 8 - 0.3)
        with pytest.raises(Conflict, match="`attempt`"):
            await fleet.tools.update_budget("eight", 0, [0], part="w")
