"""The wire formats of trainers over real HTTP, with the bytes that their own clients send.

Read: OpenRLHF 0.11.2 (`utils/agent.py`), slime 0.3 (`rollout/rm_hub`), NeMo Gym of November 2026
(`responses_api_agents/simple_agent`, `base_resources_server.py`), OpenEnv 0.1.1
(`http_env_client.py`), SkyRL-Agent (`tools/sandbox_fusion.py`).
"""

import json
from collections.abc import Iterator

import httpx
import pytest

from rewardfleet.text.messages import completion_text
from rewardfleet.text.prompt import response_of
from rewardfleet.wire.causes import CodeCause
from rewardfleet.wire.errors import Abstained, BackendFailed, Unavailable
from rewardfleet_server.testing import FakeJudge, FakeSandbox
from rewardfleet_server.tools.app import create_app as create_tools
from rewardfleet_server.tools.settings import ToolsSettings

from ...conftest import JSON, client_of, image_base64, served, table
from ...measure import CpuStopwatch, Stopwatch
from ..code.conftest import served_code
from ..test_engine import item_metrics
from ..video.test_bad_input import check_problem

FIVE = {"inputs": [""], "outputs": ["5\n"]}
PROMPT = "<|im_start|>user\nPrint 5. Do not print(6).<|im_end|>\n<|im_start|>assistant\n"
CALL = '<think>look</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
TEXTS = ["print(5)", "```python\nprint(5)\n```", "", "\0", "I cannot.", "\ud800", "x" * 1_000_001]
SCORED = list(zip(TEXTS, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], strict=True))


@pytest.fixture(scope="module")
def code() -> Iterator[httpx.Client]:
    with served_code(workers=2) as service:
        yield service.client


@pytest.fixture
def failing(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with served_code(sandbox=FakeSandbox(error=request.param)) as service:
        yield service.client


def post(client: httpx.Client, path: str, body: object) -> httpx.Response:
    """Send JSON as Python's `json` writes it: also lone surrogates, escaped."""
    return client.post(path, content=json.dumps(body).encode(), headers=JSON)


def refusal(client: httpx.Client, path: str, body: object, kind: str = "invalid") -> str:
    response = post(client, path, body)
    check_problem(response, kind)
    return response.json()["detail"]


def answer(client: httpx.Client, path: str, body: object) -> object:
    response = post(client, path, body)
    assert response.status_code == 200, response.text
    return response.json()


# OpenRLHF


def openrlhf(query: str, label: object, prompt: str = PROMPT) -> dict[str, list[object]]:
    return {"query": [query], "prompts": [prompt], "labels": [label]}


def test_openrlhf_sends_prompt_and_special_tokens(code: httpx.Client):
    body = (
        b'{"query": ["print what?print(5)<eos>"], "prompts": ["print what?"], '
        rb'"labels": ["{\"inputs\": [\"\"], \"outputs\": [\"5\"]}"]}'
    )
    found = code.post("/get_reward", content=body, headers=JSON).json()
    logs = found.pop("extra_logs")
    assert found == {"rewards": [1.0], "scores": [1.0]}
    assert logs == {"pass_rate": [1.0]} | {f"cause/{each}": [0.0] for each in CodeCause}


@pytest.mark.parametrize("end", table("ends_of_texts"))
def test_openrlhf_scores_the_program_without_the_tokens_that_end_it(code: httpx.Client, end: str):
    query = f"{PROMPT}print(5){end}"
    assert answer(code, "/get_reward", openrlhf(query, FIVE))["rewards"] == [1.0]


@pytest.mark.parametrize("text", ["x = y[PAD]", "x = y[sep]", "a < b > c", "print('<eos>')"])
def test_the_end_of_a_program_is_no_special_token(text: str):
    assert completion_text(text) == text


@pytest.mark.parametrize(("text", "score"), SCORED)
def test_any_response_is_scored(code: httpx.Client, text: str, score: float):
    assert answer(code, "/get_reward", openrlhf(PROMPT + text, FIVE))["rewards"] == [score]
    assert answer(code, "/slime", slime(text)) == score
    result = answer(code, "/verify", rollout(text, ground_truth=FIVE))
    assert (result["reward"], result["mask_sample"]) == (score, False)


@pytest.mark.parametrize(("query", "prompt", "response"), table("queries_and_prompts"))
def test_what_follows_the_prompt_is_the_response(query: str, prompt: str, response: str | None):
    assert response_of(query, prompt) == response


@pytest.mark.serial
@pytest.mark.slow
def test_the_time_to_find_the_prompt_is_linear():
    watch = CpuStopwatch()
    assert response_of("a" * 300_000 + "b", "a" * 299_999 + "c") is None
    assert watch.seconds < 3


def test_openrlhf_a_label_may_have_options_of_a_request(code: httpx.Client):
    half = {"inputs": ["", ""], "outputs": ["5", "6"]}
    query = f"{PROMPT}print(5)"
    assert answer(code, "/get_reward", openrlhf(query, half))["rewards"] == [0.5]
    label = json.dumps({"tests": half, "mode": "all_pass"})
    assert answer(code, "/get_reward", openrlhf(query, label))["rewards"] == [0.0]


def test_openrlhf_several_samples_keep_their_order(code: httpx.Client):
    texts = ["print(5)", "print(6)", "print(2+3)"]
    body = {"query": [f"{PROMPT}{text}" for text in texts], "prompts": [PROMPT] * 3,
            "labels": [FIVE] * 3}  # fmt: skip
    found = answer(code, "/get_reward", body)
    assert found["rewards"] == found["scores"] == found["extra_logs"]["pass_rate"] == [1, 0, 1]
    assert found["extra_logs"]["cause/wrong_answer"] == [0, 1, 0]


def test_openrlhf_an_empty_list_has_no_rewards(code: httpx.Client):
    """Up to 0.11.0, it splits each sample over all URLs."""
    found = answer(code, "/get_reward", {"query": [], "prompts": [], "labels": []})
    assert found == {"rewards": [], "scores": [], "extra_logs": {}}


@pytest.mark.parametrize(("body", "reason"), table("invalid_queries"))
def test_what_the_caller_wrote_may_be_invalid(code: httpx.Client, body: object, reason: str):
    assert reason in refusal(code, "/get_reward", body)


@pytest.mark.parametrize("failing", [Unavailable("no jail")], indirect=True)
def test_openrlhf_and_slime_get_an_error_instead_of_a_reward(failing: httpx.Client):
    check_problem(post(failing, "/get_reward", openrlhf(PROMPT, FIVE)), "unavailable")
    body = {"query": [PROMPT] * 2, "prompts": [PROMPT] * 2, "labels": [FIVE] * 2}
    check_problem(post(failing, "/get_reward", body), "unavailable")
    check_problem(post(failing, "/slime", slime("print(5)")), "unavailable")


# slime


def slime(response: str, label: object = FIVE) -> dict[str, object]:
    prompt = [{"role": "user", "content": "Print 5."}]
    return {"prompt": prompt, "response": response, "label": label}


def test_slime_special_tokens_are_no_part_of_the_program(code: httpx.Client):
    assert answer(code, "/slime", slime("print(5)<|im_end|>", json.dumps(FIVE))) == 1


# NeMo Gym


def rollout(text: str, **row: object) -> dict[str, object]:
    """Return what `simple_agent` sends to `/verify`: its row, and the response."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
               "content": content}  # fmt: skip
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [
        {"type": "summary_text", "text": "print(7)"}]}  # fmt: skip
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Print 5."}]},
        "response": {"id": "resp_1", "object": "response", "output": [reasoning, message],
                     "parallel_tool_calls": True, "tool_choice": "auto", "tools": []},
        "agent_ref": {"name": "simple_agent"},
        "_ng_task_index": 3,
        **row,
    }  # fmt: skip


@pytest.mark.parametrize("row", table("rows_of_gym"))
def test_gym_gets_its_row_back_with_the_reward(code: httpx.Client, row: dict[str, object]):
    assert answer(code, "/seed_session", rollout("", **row)) == {}
    body = rollout("```python\nprint(5)\n```", **row)
    assert answer(code, "/verify", body) == {
        **body,
        "reward": 1.0,
        "reward_components": {"pass_rate": 1.0},
        "reward_details": {},
        "reward_cause": None,
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
    }


def test_gym_paths_may_have_the_id_of_a_rollout(code: httpx.Client):
    """As with `observability_enabled`, since 0.7.0."""
    assert answer(code, "/ng-rollout/a-1/seed_session", rollout("")) == {}
    body = rollout("print(5)", ground_truth=FIVE)
    assert answer(code, "/ng-rollout/a-1/verify", body)["reward"] == 1.0


def test_gym_a_rollout_without_a_message_is_scored(code: httpx.Client):
    body = {**rollout("", ground_truth=FIVE), "response": {"output": []}}
    assert answer(code, "/verify", body)["reward"] == 0


def test_gym_the_response_is_what_the_assistant_wrote(code: httpx.Client):
    body = rollout("print(5)", ground_truth=FIVE)
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}
    call = {"type": "function_call", "name": "f", "call_id": "1", "arguments": "\ud800"}
    body["response"]["output"] += [user, call]
    assert answer(code, "/verify", body)["reward"] == 1
    body["response"]["output"].append({"role": "assistant", "content": 5})
    assert "a completion is a text" in refusal(code, "/verify", body)


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (BackendFailed("it broke"), "verifier_error"),
        (Unavailable("it broke"), "provider_unavailable"),
        (Abstained("it broke"), "judge_unparseable"),
        (RuntimeError("it broke"), "verifier_error"),
    ],
    indirect=["failing"],
)
def test_gym_masks_a_sample_without_a_reward(failing: httpx.Client, kind: str):
    """In the ways of the released version, of the next one, and of its collection of rollouts."""
    body = rollout("print(5)", ground_truth=FIVE, instance_config={"a": 1})
    result = answer(failing, "/verify", body)
    assert (result["mask_sample"], result["failure_kind"]) == (True, kind)
    assert result["instance_config"] == {"a": 1, "mask_sample": True}
    assert result["_ng_failure_class"] == "judge_failed"
    assert result["failure_reason"] == result["_ng_failure_judge_error"]
    assert result["response"] == body["response"]
    failed = item_metrics(failing)
    assert sum(n for name, n in failed.items() if 'status="error"' in name) == 1


def test_gym_verifies_again_without_the_failure_of_the_first_time(code: httpx.Client):
    assert code.get("/reverify_mode").json() == "stateless"
    failure = {"reward": 0.0, "mask_sample": True, "failure_kind": "verifier_error",
               "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "x"}  # fmt: skip
    result = answer(code, "/verify", rollout("print(5)", ground_truth=FIVE, **failure))
    assert (result["reward"], result["mask_sample"], result["failure_kind"]) == (1.0, False, None)
    assert not any(name.startswith("_ng_failure") for name in result)


def test_gym_a_row_without_tests_is_an_error_and_not_masked(code: httpx.Client):
    reason = refusal(code, "/verify", rollout("print(5)"))
    assert "its fields: agent_ref, _ng_task_index" in reason


def test_gym_masked_samples_are_no_part_of_a_mean(code: httpx.Client):
    rows = [{"reward": 1.0}, {"reward": 0.0}, {"reward": 0.0, "mask_sample": True}, {"reward": 1}]
    metrics = answer(code, "/aggregate_metrics", {"verify_responses": rows})
    assert metrics["key_metrics"] == {"mean/reward": pytest.approx(2 / 3)}
    assert metrics["agent_metrics"]["masked"] == 0.25
    empty = answer(code, "/aggregate_metrics", {"verify_responses": rows[2:3]})
    assert (empty["key_metrics"], empty["agent_metrics"]) == ({}, {"masked": 1.0})
    large = answer(code, "/aggregate_metrics", {"verify_responses": [{"reward": 1e308}] * 2})
    assert large["key_metrics"] == {"mean/reward": 1e308}
    refusal(code, "/aggregate_metrics", {"verify_responses": [{"reward": float("nan")}]})


# OpenEnv


def test_openenv_reset_and_step(code: httpx.Client):
    reset = answer(code, "/reset", {})
    assert reset == {"observation": {}, "reward": None, "done": False}
    step = {"action": {"code": "print(5)", "ground_truth": FIVE}, "timeout_s": 15}
    numbers = {"components": {"pass_rate": 1.0}, "details": {}}
    observation = {"status": "ok", **numbers, "cause": None}
    result = {"observation": observation, "reward": 1.0, "done": True}
    assert answer(code, "/step", step) == result
    messages = [{"role": "assistant", "content": "print(5)<|im_end|>"}]
    for action in ({"message": messages}, {"code": None, "message": "print(5)"}):
        body = {"action": {**action, "ground_truth": FIVE}}
        assert answer(code, "/step", body)["reward"] == 1
    for name in ("code", "message", "response", "completion"):  # no content
        found = answer(code, "/step", {"action": {name: None, "ground_truth": FIVE}})
        assert (found["reward"], found["observation"]["cause"]) == (None, "no_answer")


TESTS = {"kind": "stdio", "cases": [{"stdout": "5"}]}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ({"revision": "print(5)", "code": None, "tests": FIVE}, "unknown field 'code'"),
        ({"message": 5, "ground_truth": FIVE}, "a completion is a text"),
        ({"revision": "print(6)", "test": TESTS}, "unknown field 'test'"),
    ],
)
def test_openenv_an_action_is_an_item_or_a_text(code: httpx.Client, action: dict, reason: str):
    assert reason in refusal(code, "/step", {"action": action})
    body = {"action": {"revision": "print(6)", "tests": TESTS}, "timeout_s": 15}
    assert answer(code, "/step", body)["reward"] == 0


def test_openenv_an_abstention_is_a_null_reward():
    action = {"task_text": "put it there", "frames_base64": [image_base64()]}
    with served(FakeJudge(None)) as client:
        result = answer(client, "/step", {"action": action, "timeout_s": 15})
    assert result["reward"] is None
    assert (result["observation"]["status"], result["done"]) == ("abstained", True)


@pytest.mark.slow
def test_openenv_the_timeout_of_a_step_is_its_deadline(code: httpx.Client):
    sleeps = "import time\ntime.sleep(60)"
    action = {"code": sleeps, "ground_truth": {"inputs": [""] * 9, "outputs": ["5"] * 9}}
    watch = Stopwatch()
    response = code.post("/step", json={"action": action, "timeout_s": 6})
    # Half of it is the program's, so that its caller gets why there is no verdict. On a busy
    # machine, that does not suffice.
    assert response.status_code in {503, 504}, response.text
    assert watch.seconds < 10


# The tools service


def test_answers_that_call_tools(tmp_path_factory: pytest.TempPathFactory):
    settings = ToolsSettings(run_state=tmp_path_factory.mktemp("tools") / "state.db")
    with client_of(create_tools(settings)) as client:
        found = answer(client, "/get_reward", openrlhf(f"{PROMPT}{CALL}<|im_end|>", CALL))
        assert (found["rewards"], found["extra_logs"]["correctness"]) == ([4.0], [3.0])
        assert answer(client, "/slime", slime(CALL, CALL)) == 4
        assert answer(client, "/verify", rollout(CALL, ground_truth=CALL))["reward"] == 4
        label = {"ground_truth": CALL, "options": {"variant": "toolrl", "correct_max1": True}}
        assert answer(client, "/slime", slime(CALL, label)) == 2
        assert answer(client, "/slime", slime(CALL, json.dumps(label))) == 2
        check_problem(post(client, "/slime", slime(CALL, 5)), "invalid")
        body = rollout("<think>x</think>", ground_truth=CALL)
        call = {"type": "function_call", "name": "search", "arguments": "{}", "call_id": "1"}
        reply = {"type": "function_call_output", "call_id": "1", "output": "a"}
        body["response"]["output"] += [call, reply]
        assert answer(client, "/verify", body)["reward"] == 4
        call |= {"name": "\ud800", "arguments": "{"}
        result = answer(client, "/verify", body)
        assert (result["reward"], result["reward_cause"]) == (-3, "malformed_call")
        message = {"role": "assistant", "content": "<think>x</think>",
                   "tool_calls": [{"function": {"name": "search", "arguments": {}}}]}  # fmt: skip
        step = {"action": {"message": [message], "ground_truth": CALL}}
        assert answer(client, "/step", step)["reward"] == 4
        step["action"]["message"] = None
        assert answer(client, "/step", step)["reward"] is None


@pytest.mark.slow
def test_large_bodies_are_decoded_in_another_process(code: httpx.Client):
    query = PROMPT + "#" * 2_000_000 + "\nprint(5)"
    assert answer(code, "/get_reward", openrlhf(query, FIVE))["rewards"] == [0]  # too long
    rows = rollout("print(5)", ground_truth=FIVE, more="x" * 2_000_000)
    assert answer(code, "/verify", rows)["reward"] == 1
