"""What a policy wrote is null, as of an aborted rollout: in every door, no reward, and no failure.

`tests/adapters/test_completion_text.py` has the forms of completions, by each adapter.
"""

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet import RewardFleet
from rewardfleet.adapters import verl
from rewardfleet.adapters.ctrl import CritiqueReward
from rewardfleet.commands.main import main
from rewardfleet_server.episode.app import create_app as create_episode
from rewardfleet_server.episode.settings import EpisodeSettings

from ..conftest import client_of
from ..programs import FENCED, TESTS
from ..server.code.conftest import served_code
from ..server.tools.conftest import TRUTH, served_tools

#: The field of the answer, the rest of a request, a right answer; its score, that of ''.
ITEMS = {
    "code": ("revision", {"tests": TESTS}, FENCED, (1.0, 0.0)),
    "tools": ("response", {"ground_truth": TRUTH}, TRUTH, (4.0, -3.0)),
}
NULL = ("abstained", "no_answer", None)


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, httpx.Client]]:
    with served_code(cache_mb=16) as code, served_tools() as tools:
        yield {"code": code.client, "tools": tools}


def outcome(score: dict[str, Any]) -> tuple[str, str | None, float | None]:
    return score["status"], score["cause"], score["score"]


@pytest.mark.parametrize("service", ITEMS)
async def test_by_http_and_by_the_client(service: str, services: dict[str, httpx.Client]):
    """An empty text is an answer, also if it is in the cache; an absent field is invalid."""
    client, (name, rest, right, scores) = services[service], ITEMS[service]
    values = [right, "", None, [], ""]
    expected = [scores[0], scores[1], None, None, scores[1]]
    single = [client.post("/score", json={name: value, **rest}) for value in values]
    assert [each.status_code for each in single] == [200] * 5
    body = {"items": [{name: value, **rest} for value in values]}
    batch = client.post("/score/batch", json=body).json()["results"]
    for found in ([each.json() for each in single], batch):
        assert [each["score"] for each in found] == expected
        assert {outcome(each) for each in found[2:4]} == {NULL}
    absent = client.post("/score", json=rest)
    assert (absent.status_code, absent.json()["detail"]) == (422, f"field '{name}' is missing")
    assert 'cause="no_answer"' in client.get("/metrics").text
    urls = {service: str(client.base_url)}
    async with RewardFleet(**urls, on_failure=math.nan, coalesce_s=0.01) as fleet:
        score = await getattr(fleet, service).score(None, *rest.values())
        assert outcome(vars(score)) == NULL
        assert math.isnan(await getattr(fleet, service).reward([], *rest.values()))
        assert await getattr(fleet, service).reward("", *rest.values()) == scores[1]


WIRES = [
    ("/step", {"action": {"revision": None, "tests": TESTS}}, 200, {"reward": None}),
    ("/step", {"action": {"message": [], "tests": TESTS}}, 200, {"reward": None}),
    ("/verify", {"responses_create_params": {}, "response": {"output": []}, "tests": TESTS}, 200,
     {"mask_sample": True, "failure_kind": "judge_unparseable"}),
    ("/slime", {"response": None, "label": TESTS}, 424, {"kind": "abstained"}),
    ("/get_reward", {"query": [None], "prompts": [""], "labels": [TESTS]}, 424,
     {"kind": "abstained"}),
    ("/submit", {"dataset": "", "id": 1, "completion": None, "config": {
        "dataset_type": "CommonOJ", "language": "python", "provided_data": {
            "test": [{"input": {"stdin": ""}, "output": {"stdout": ""}}]}}}, 424,
     {"kind": "abstained"}),
    # A policy that only thinks has answered, without a program.
    ("/verify", {"responses_create_params": {}, "response": {"output": [{"type": "reasoning"}]},
                 "tests": TESTS}, 200, {"mask_sample": False, "reward": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "expected"), WIRES)
def test_by_wires_of_trainers(services, path: str, body: dict, status: int, expected: dict):
    found = services["code"].post(path, json=body)
    assert (found.status_code, found.json() | expected) == (status, found.json())


async def test_a_program_that_was_revised_from_no_critique_earns_nothing(services, monkeypatch):
    monkeypatch.setattr(verl, "_scorers", {})
    url = str(services["code"].base_url)
    for rules in ("service", "original"):
        fleet = RewardFleet(code=url, on_failure=math.nan)
        critics = CritiqueReward(fleet, [], tokenizer=None, rules=rules)
        assert math.isnan((await critics.get_reward_all([None], [FENCED], [{"tests": TESTS}]))[0])
    given = {"revision": FENCED}
    scored = await verl.compute_score_async("", None, TESTS, given, url=url, on_failure=math.nan)
    assert math.isnan(scored["score"]) and scored["reward/cause/no_answer"] == 1.0


CELLS = [None, "", TRUTH, None]


@pytest.mark.parametrize(("kind", "empty"), [("jsonl", -3.0), ("parquet", -3.0), ("csv", None)])
def test_by_files(services, tmp_path: Path, kind: str, empty: float | None):
    """A cell of a CSV is null or has a text; a later column is not what the policy wrote."""
    names = ("completion", "output", "ground_truth", "uid", "options")
    rows = [dict(zip(names, (each, TRUTH, TRUTH, None, None), strict=True)) for each in CELLS]
    path, out = tmp_path / f"rows.{kind}", tmp_path / "out"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        rows[3]["completion"] = []
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    command = ["score", "tools", str(path), "--url", str(services["tools"].base_url)]
    assert main([*command, "-o", str(out), "--format", "jsonl"]) == 1
    found = [json.loads(line) for line in (out / "part-00000.jsonl").read_text().splitlines()]
    assert [each["score"] for each in found] == [None, empty, 4.0, None]
    assert {outcome(each) for each in found if each["score"] is None} == {NULL}


def test_a_column_that_no_row_has_is_one_error(services, tmp_path: Path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"ground_truth": "x"}\n')
    command = ["score", "tools", str(path), "--url", str(services["tools"].base_url)]
    named = ["--completion-column", "a", "--tests-column"]
    for options, reason in [([], "none of the columns revision"), ([*named, "c"], "no column c"),
                            ([named[0], "b"], "no column b; the row has: a, ground")]:  # fmt: skip
        assert main([*command, *options]) == 2
        printed = capsys.readouterr()
        assert reason in printed.err and not printed.out
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert main([*command, *named[:2]]) == 2
    assert "none of the columns ground_truth" in capsys.readouterr().err


def test_in_a_group_it_counts_as_arrived():
    """Its member is masked; the others are normalized without it."""
    fields = {"kind": "return", "group": "g"}
    rewards = [{"episode_reward": 1.0}, {"episode_reward": 0.0}, {"masked": True}]
    members = [{"uid": str(n), **fields, **each} for n, each in enumerate(rewards)]
    common = {"run": "r", "step": 1, "group_size": 3, "options": {"normalize": "group_mean"}}
    calls = [{**common, "item": each} for each in [*members, *members[:2]]]
    with client_of(create_episode(EpisodeSettings())) as client:
        found = [client.post("/groups/members", json=each).json() for each in calls]
    assert [each["released"] for each in found] == [False, False, True, True, True]
    assert [each["result"]["score"] for each in found[2:]] == [None, 0.5, -0.5]
    assert found[2]["missing"] == 0 and found[2]["group"]["size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("service", ITEMS)
def test_logs_have_it_and_it_is_replayed(service: str, services, tmp_path: Path, capsys):
    (name, rest, right, _), log = ITEMS[service], str(tmp_path / "log")
    serve = {"code": served_code, "tools": served_tools}[service]
    with serve(score_log=log, score_log_sample=1.0) as served:
        items = [{name: each, **rest} for each in (right, None)]
        getattr(served, "client", served).post("/score/batch", json={"items": items})
    url = str(services[service].base_url)
    assert main(["score", "replay", log, "-o", str(tmp_path / "new"), "--url", url]) == 0
    capsys.readouterr()
    assert main(["report", log]) == 0 and main(["log", "list", log]) == 0
    printed = capsys.readouterr().out
    (digest,) = re.findall(r"(\w{12}) .*abstained +no_answer$", printed, re.MULTILINE)
    assert main(["explain", log, "--id", digest]) == 0
    story = capsys.readouterr().out.splitlines()[1:]  # after when it was answered
    assert story[0].endswith("abstained, cause no_answer") and len(story) == 3
