"""Components are addends: their sum is the score, over services, options and wires."""

import itertools
import math
import random

import httpx
import pytest

from rewardfleet_server.testing import FakeJudge

from ..conftest import served
from .code.conftest import served_code
from .code.test_critique import CRITIQUES
from .episode.conftest import served_episodes
from .http.test_trainers import answer as post
from .http.test_trainers import rollout
from .tools.conftest import TRUTH, answer, call, served_tools

TOOLS = [
    {},
    {"with_length": True, "cost": "calls", "cost_weights": {"search": 0.7, "other": 0.1}},
    {"variant": "toolrl", "with_length": True, "cost": "families"},
    {"variant": "toolrl", "schedule_reward": True, "schedule_length": True},
    {"variant": "toolrl", "correct_max1": True, "cost": "calls"},
]
ANSWERS = [TRUTH, answer(*[call(query="x", limit=3)] * 7), answer(call("other")), "no"]
TESTS = {"kind": "stdio", "cases": [{"stdin": n, "stdout": n} for n in "1234567"]}
PROGRAMS = ["print(input())", "print(min(int(input()), 3))", "no program"]
KINDS = ["success", "return", "reward_model", "efficiency", "hybrid", "visual", "objectives",
         "shaped", "discounted"]  # fmt: skip
NORMALIZATIONS = ["none", "length", "group_mean", "group_std", "leave_one_out", "running"]


def check(score: float | None, components: dict[str, float]) -> None:
    assert bool(components) == (score is not None)
    total = score or 0.0
    assert abs(math.fsum(components.values()) - total) <= 1e-9 * max(1, abs(total))


def check_scores(client: httpx.Client, items: list[dict]) -> None:
    alone = [post(client, "/score", item) for item in items]
    for each in [*alone, *post(client, "/score/batch", {"items": items})["results"]]:
        check(each["score"], each["components"])
    stepped = post(client, "/step", {"action": items[0]})
    check(stepped["reward"], stepped["observation"]["components"])


def check_wires(client: httpx.Client, text: str, truth: object) -> None:
    verified = post(client, "/verify", rollout(text, ground_truth=truth))
    check(verified["reward"], verified["reward_components"])
    found = post(client, "/get_reward", {"query": [text], "prompts": [""], "labels": [truth]})
    logs = {name: each for name, (each,) in found["extra_logs"].items() if "/" not in name}
    check(found["rewards"][0], logs)


def test_components_of_answers_that_call_tools():
    with served_tools() as client:
        client.put("/budgets/priced", json={"initial_lambda": 0.3712, "budget": 0.3})
        for options, run, text in itertools.product(TOOLS, (None, "priced"), ANSWERS):
            truth = {"ground_truth": TRUTH, "options": options, "step": 7, "run": run}
            check_scores(client, [{"response": text, **truth}])
            check_wires(client, text, truth)


def test_components_of_programs_also_from_the_cache():
    critiques = [{}, *({"critique": each, "original_passed": True} for each in CRITIQUES.values())]
    with served_code(cache_mb=16) as service:
        for mode, text in itertools.product(("pass_rate", "all_pass"), PROGRAMS):
            truth = {"tests": TESTS, "mode": mode}
            items = [{"revision": text, **truth, **each} for each in critiques]
            check_scores(service.client, [*items, {**items[0], "critique": "none"}])
            check_wires(service.client, text, truth)


@pytest.mark.parametrize("combine", ["sum", "gated", "normalized"])
def test_components_of_episodes(combine: str):
    draw = random.Random(combine)
    items = [
        {
            "uid": f"{kind} {n}", "group": f"g{n % 2}", "kind": kind, "success": n < 3,
            "steps": 2 + n, "max_steps": 9, "step_rewards": [draw.random(), draw.gauss(0, 9)],
            "episode_reward": draw.gauss(0, 99), "progress": [draw.random(), draw.random()],
            "step_token_ends": [1, 2], "actions": [[draw.random(), 1], [draw.random(), 0]],
            "reward_model_score": draw.random(), "visual_success": draw.random(),
        }
        for kind, n in itertools.product(KINDS, range(6))
    ]  # fmt: skip
    options = {"combine": combine, "weights": {"success": 7, "efficiency": 0.3, "smoothness": -2}}
    with served_episodes() as client:
        for normalize in NORMALIZATIONS:
            given = {**options, "normalize": normalize}
            body = {"items": items, "options": given, "run": normalize, "step": 0}
            results = post(client, "/score/batch", body)["results"]
            assert all(each["status"] == "ok" for each in results)
            for each in results:
                check(each["score"], each["components"])


@pytest.mark.parametrize("score", [0.3, None])
def test_components_of_clips(frames_request: dict[str, object], score: float | None):
    with served(FakeJudge(score)) as client:
        check_scores(client, [frames_request])
