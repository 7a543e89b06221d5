"""Budgets: one multiplier per run, whatever the number of workers and replicas."""

import random
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from rewardfleet_server.testing import wait_until

from ...conftest import table
from ..conftest import RedisServer
from ..processes import service_process
from .conftest import served_tools, update

ETA, BUDGET = 0.5, 0.25
#: Which the numbers of these tests are of; with one part in each step.
DUAL_ASCENT = {"controller": "dual_ascent"}
OPTIONS = {**DUAL_ASCENT, "eta": ETA, "budget": BUDGET, "parts": 1}


@pytest.fixture
def run(service: httpx.Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    assert service.put(f"/budgets/{name}", json=OPTIONS).status_code == 200
    return name


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        # By step and part: the costs, whether the step is closed then, and the multiplier.
        ({"eta": 100, "max_lambda": 3, "parts": 1}, [(0, "a", [1], True, 3)]),
        ({"eta": 1, "budget": 0, "every": 3, "parts": 1},  # the mean of all answers
         [(0, "a", [1], True, 0), (1, "a", [1, 1], True, 0), (2, "a", [0, 0, 0], True, 0.5)]),
        ({"eta": 1, "budget": 0, "parts": 3},
         [(0, part, [1], part == "c", int(part == "c")) for part in "aabc"]),
        ({"eta": 0.5, "budget": 0.25, "parts": 1},
         [(0, "a", [1, 1, 0, 0], True, 0.125), (1, "a", [0, 0], True, 0), (2, "a", [0], True, 0),
          (3, "a", [1.0], True, 0.375), (4, "a", [3, 0, 0], True, 0.75)]),
    ],
    ids=["limit", "every third step", "known parts", "dual ascent"],
)  # fmt: skip
def test_steps_are_closed_and_change_the_multiplier(service, options: dict, updates: list, request):
    run = request.node.callspec.id
    service.put(f"/budgets/{run}", json={**DUAL_ASCENT, **options})
    for step, part, costs, closed, multiplier in updates:
        answer = update(service, run, step, part=part, costs=costs)
        assert (answer["closed"], answer["lambda"]) == (closed, pytest.approx(multiplier))
        if closed and "every" not in options:
            mean = sum(costs) / len(costs)
            assert answer["mean_cost"] == pytest.approx(mean)
            assert answer["violation"] == pytest.approx(mean - options.get("budget", 0.3))
    assert service.get(f"/budgets/{run}").json()["lambda"] == pytest.approx(multiplier)


def test_a_lower_limit_lowers_the_multiplier(service: httpx.Client):
    service.put("/budgets/lower", json={**DUAL_ASCENT, "eta": 100, "parts": 1})
    assert update(service, "lower", 0, costs=[1])["lambda"] == 70
    lower = service.put("/budgets/lower", json={**DUAL_ASCENT, "eta": 100, "max_lambda": 2}).json()
    assert lower["lambda"] == 2


def test_parts_are_weighted_by_their_answers_and_closed_by_a_later_step(
    service: httpx.Client, run: str
):
    service.put(f"/budgets/{run}", json={**OPTIONS, "parts": None})
    assert update(service, run, 0, part="a", costs=[1, 1, 1])["closed"] is False
    update(service, run, 0, part="b", mean_cost=0, count=1)
    budget = service.get(f"/budgets/{run}").json()
    assert (budget["open_step"], budget["open_parts"], budget["lambda"]) == (0, 2, 0)
    answer = update(service, run, 1, part="a", costs=[1])
    assert answer["mean_cost"] == 0.75
    assert answer["lambda"] == pytest.approx(ETA * (0.75 - BUDGET))


def test_fewer_parts_than_have_arrived_close_the_step_with_the_next_one(service: httpx.Client):
    service.put("/budgets/fewer", json={**DUAL_ASCENT, "eta": 1, "budget": 0, "parts": 5})
    for part in "abc":
        update(service, "fewer", 0, part=part, costs=[1])
    service.put("/budgets/fewer", json={**DUAL_ASCENT, "eta": 1, "budget": 0, "parts": 2})
    assert update(service, "fewer", 0, part="d", costs=[1])["closed"] is True


@pytest.mark.parametrize(("body", "status", "reason"), table("budget_updates"))
def test_an_update_that_does_not_fit_leaves_the_budget_unharmed(
    service: httpx.Client, body: object, status: int, reason: str
):
    service.put("/budgets/fit", json={})
    if service.get("/budgets/fit").json()["step"] is None:
        update(service, "fit", 3, costs=[1])
        update(service, "fit", 4, part="a", costs=[1])
    before = service.get("/budgets/fit").json()
    given = {"content": body, "headers": {"content-type": "application/json"}}
    answer = service.post(
        "/budgets/fit/update", **(given if isinstance(body, str) else {"json": body})
    )
    assert answer.status_code == status
    assert reason in answer.json()["detail"]
    assert service.get("/budgets/fit").json() == before


@pytest.mark.parametrize(("options", "reason"), table("budget_options"))
def test_options_out_of_range(service: httpx.Client, options: dict, reason: str):
    service.put("/budgets/options", json={"initial_lambda": 1})
    before = service.get("/budgets/options").json()
    answer = service.put("/budgets/options", json=options)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]
    assert service.get("/budgets/options").json() == before


def test_a_run_without_a_budget_is_not_found(service: httpx.Client):
    for answer in (
        service.get("/budgets/nobody"),
        service.post("/budgets/nobody/update", json={"step": 0, "part": "a", "costs": [1]}),
        service.post(
            "/score", json={"response": "", "ground_truth": "<response>", "run": "nobody"}
        ),
    ):
        assert answer.status_code == 404
        assert "PUT /budgets/nobody" in answer.json()["detail"]
    assert service.get("/budgets/nobody%2Fupdate").status_code == 404  # a run with a slash
    assert service.put("/budgets/", json={}).status_code == 404


def test_putting_the_same_options_again_keeps_the_multiplier(service: httpx.Client, run: str):
    update(service, run, 0, costs=[1])
    before = service.get(f"/budgets/{run}").json()
    assert service.put(f"/budgets/{run}", json=OPTIONS).json() == before


def test_a_checkpoint_resumes_a_run_and_counts_later_steps_again(service: httpx.Client):
    options = {"controller": "pid", "every": 2, "parts": 1}
    service.put("/budgets/resumed", json=options)
    rng = random.Random(0)
    costs = [[rng.random() for _ in range(4)] for _ in range(9)]
    for step in range(5):
        update(service, "resumed", step, costs=costs[step])
    checkpoint = service.get("/budgets/resumed").json()["checkpoint"]
    first = [update(service, "resumed", step, costs=costs[step]) for step in range(5, 9)]
    update(service, "resumed", 9, part="lost", costs=[9])
    assert service.put("/budgets/resumed", json={**options, "checkpoint": checkpoint}).json()[
        "checkpoint"
    ] == checkpoint  # fmt: skip
    again = [update(service, "resumed", step, costs=costs[step]) for step in range(5, 9)]
    assert again == first
    fresh = service.put("/budgets/copy", json={**options, "checkpoint": checkpoint}).json()
    assert fresh["lambda"] == checkpoint["multiplier"]["multiplier"]


@pytest.mark.slow
def test_metrics_have_the_runs_that_were_changed_last(service: httpx.Client):
    for number in range(40):
        service.put(f"/budgets/many-{number}", json={**DUAL_ASCENT, "eta": 1, "parts": 1})
        update(service, f"many-{number}", 0, costs=[1], mean_task_reward=number)
    text = service.get("/metrics").text
    assert 'rewardfleet_budget_mean_task_reward{run="many-39"} 39.0' in text
    assert 'rewardfleet_budget_lambda{run="many-39"} 0.7' in text
    assert 'rewardfleet_budget_violation{run="many-39"} 0.7' in text
    assert text.count("rewardfleet_budget_lambda{") == 32


def test_a_budget_that_cannot_be_reached_is_in_the_answer_and_in_the_metrics(service: httpx.Client):
    options = {"budget": 0.1, "max_lambda": 2, "parts": 1}
    service.put("/budgets/beyond", json=options)
    answers = [update(service, "beyond", step, costs=[1])["warning"] for step in range(60)]
    assert set(answers[:49]) == {None}
    assert set(answers[49:]) == {"the budget cannot be reached with max_lambda 2"}
    assert service.get("/budgets/beyond").json()["warning"] == answers[-1]
    assert 'rewardfleet_budget_warning{run="beyond"} 1.0' in service.get("/metrics").text
    service.put("/budgets/beyond", json={**options, "budget": 1})
    later = [update(service, "beyond", step, costs=[1])["warning"] for step in range(60, 400)]
    assert later[0] and later[-1] is None
    assert 'rewardfleet_budget_warning{run="beyond"} 0.0' in service.get("/metrics").text


def test_metrics_do_not_go_back_with_an_update_that_is_sent_again(service: httpx.Client):
    options = {**DUAL_ASCENT, "eta": 1, "budget": 0, "parts": 2}
    empty = service.put("/budgets/again", json=options).json()["checkpoint"]
    for step in (1, 2):
        for part in "aba":  # the first answer of `a` is from before the step was closed
            update(service, "again", step, part=part, costs=[1])
    update(service, "again", 1, part="b", costs=[1])
    assert 'rewardfleet_budget_lambda{run="again"} 2.0' in service.get("/metrics").text
    service.put("/budgets/again", json={**options, "checkpoint": empty})
    text = service.get("/metrics").text
    assert 'rewardfleet_budget_lambda{run="again"} 0.0' in text
    assert 'rewardfleet_budget_mean_cost{run="again"}' not in text


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "x/update", 'ü\n"', "x" * 200])
def test_the_name_of_a_run_may_be_any_text(service: httpx.Client, name: str):
    path = f"/budgets/{quote(name, safe='')}"
    assert service.put(path, json={**OPTIONS, "eta": 1, "budget": 0}).json()["run"] == name
    body = {"step": 0, "part": "a", "costs": [1]}
    assert service.post(f"{path}/update", json=body).json()["lambda"] == 1
    item = {"response": "", "ground_truth": "<response>1</response>", "run": name}
    assert service.post("/score", json=item).json()["details"]["lambda"] == 1


def test_the_name_of_a_run_has_the_limit_of_an_item(service: httpx.Client):
    path = "/budgets/" + "x" * 201
    answers = (
        service.put(path, json={}),
        service.get(path),
        service.post(f"{path}/update", json={"step": 0, "part": "a", "costs": [1]}),
    )
    assert {answer.status_code for answer in answers} == {422}
    assert all("at most 200 characters" in answer.json()["detail"] for answer in answers)


# A store that fails


@pytest.mark.slow
def test_a_budget_survives_kill_9(tmp_path: Path):
    """The process is killed after each answer; nothing that was answered is lost."""
    expected, path = 0.0, tmp_path / "runs.sqlite"
    for step in range(3):
        with (
            service_process("tools", "--run-state", str(path)) as (process, url),
            httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
        ):
            client.put("/budgets/r", json={**DUAL_ASCENT, "eta": 0.5})
            for part in "aabb":
                update(client, "r", step, part=part, costs=[1])
            budget = client.get("/budgets/r").json()
            process.kill()
        assert budget["lambda"] == pytest.approx(expected)
        assert (budget["open_step"], budget["open_parts"]) == (step, 2)
        expected += 0.5 * (1 - 0.3)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_without_redis_calls_with_a_run_fail_and_count_nothing(redis_server: RedisServer):
    with served_tools(run_state=redis_server.url) as service:
        service.put("/budgets/r", json={**DUAL_ASCENT, "eta": 1, "budget": 0, "parts": 1})
        update(service, "r", 0, costs=[1])
        redis_server.stop()
        try:
            item = {"response": "", "ground_truth": "<response>1</response>"}
            for answer in (
                service.put("/budgets/r", json={}),
                service.get("/budgets/r"),
                service.post("/budgets/r/update", json={"step": 1, "part": "a", "costs": [1]}),
                service.post("/score", json={**item, "run": "r"}),
            ):
                assert answer.status_code == 503
                assert answer.json()["retryable"] is True
            items = {"items": [item, {**item, "run": "r"}]}
            results = service.post("/score/batch", json=items).json()["results"]
            assert results[0]["score"] is not None
            assert results[1]["error"]["kind"] == "unavailable"
        finally:
            redis_server.start()
        wait_until(lambda: service.get("/budgets/r").status_code == 200)
        assert update(service, "r", 1, costs=[0])["lambda"] == 1
