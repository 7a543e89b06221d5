"""rLLM 0.3.0.pre (commit 9beb6e0): its two engines run agent flows and workflows, with retries."""

import json
import sys
from types import SimpleNamespace

import pytest

from rewardfleet.adapters.rllm import evaluator

from ..programs import HALF, RIGHT, TESTS, TEXTS
from .trainers import PEERS, UNREACHABLE, error_of, in_process, needs_clients, needs_peer

pytestmark = [needs_clients, needs_peer("rllm"), pytest.mark.slow]

SOURCE = [str(PEERS / "rllm"), str(PEERS / "rllm/rllm-model-gateway/src")]
ROW = {"question": "Add.", "tests": json.dumps(TESTS)}


def summary(episode) -> dict[str, object]:
    return {
        "reason": episode.termination_reason.value,
        "is_correct": bool(episode.is_correct),
        "rewards": [float(each.reward) for each in episode.trajectories],
        "signals": [each.signals for each in episode.trajectories],
    }


async def outcome(engine, count: int) -> object:
    """Return what an engine makes of as many rollouts, or the error that ends the run."""
    try:
        episodes = await engine.execute_tasks([ROW] * count, [str(each) for each in range(count)])
    except Exception as error:
        return error_of(error)
    return [summary(each) for each in episodes]


async def flows(url: str, answers: list[object], texts: list[str], timeout_s: float = 60, **given):
    """Run flows, some with an answer, and some of which only the model's text is known."""
    sys.path[:0] = SOURCE
    from rllm.engine.agentflow_engine import AgentFlowEngine
    from rllm.types import Episode, Trajectory
    from rllm_model_gateway.models import TraceRecord

    class Flow:
        async def arun(self, task, config) -> object:
            index = int(task.id)
            if index >= len(answers):
                return None
            if index % 2:
                return Trajectory(output=answers[index])
            return Episode(artifacts={"answer": answers[index]}, trajectories=[Trajectory()])

    class Gateway:
        def get_session_url(self, uid: str, **_: object) -> str:
            return f"http://gateway/{uid}"

        async def aget_traces(self, uid: str) -> list[TraceRecord]:
            index = int(uid.partition(":")[0]) - len(answers)
            if index < 0:
                return []
            reply = {"role": "assistant", "content": texts[index]}
            ids = {"prompt_token_ids": [1], "completion_token_ids": [2]}
            return [TraceRecord(trace_id="0", session_id=uid, response_message=reply, **ids)]

        async def adelete_sessions(self, uids: list[str]) -> None: ...

        async def adelete_session(self, uid: str) -> None: ...

    reward = evaluator("code", url, timeout_s=timeout_s)
    engine = AgentFlowEngine(Flow(), reward, Gateway(), "policy", **given)
    return await outcome(engine, len(answers) + len(texts))


async def workflows(url: str, texts: list[str], timeout_s: float = 60, **given: object) -> object:
    sys.path[:0] = SOURCE
    from rllm.engine.agent_workflow_engine import AgentWorkflowEngine
    from rllm.engine.rollout import ModelOutput
    from rllm.workflows.simple_workflow import SimpleWorkflow

    async def reply(messages, application_id: str) -> ModelOutput:
        return ModelOutput(reasoning="", content=texts[int(application_id.partition(":")[0])])

    reward = evaluator("code", url, timeout_s=timeout_s)
    rollouts = SimpleNamespace(get_model_response=reply)
    engine = AgentWorkflowEngine(SimpleWorkflow, {"reward_function": reward}, rollouts, **given)
    return await outcome(engine, len(texts))


@in_process
async def scored(url: str, answers: list[object]) -> list[object]:
    return [await flows(url, answers, [*TEXTS]), await workflows(url, [*TEXTS])]


@in_process
async def failed(url: str) -> dict[str, object]:
    ends = {"timeout_s": 0.3, "raise_on_error": True}
    drops = {"timeout_s": 0.3, "raise_on_error": False}
    return {
        "ends": [await flows(url, [RIGHT], [], **ends), await workflows(url, [RIGHT], **ends)],
        "drops": [await flows(url, [], [RIGHT], **drops), await workflows(url, [RIGHT], **drops)],
    }


def test_rollouts_get_their_rewards(code_url: str):
    message = {"role": "assistant", "content": RIGHT}
    parts = [message | {"content": [{"type": "text", "text": RIGHT}]}]
    answers = [RIGHT, HALF, {"code": RIGHT}, {"code": HALF}, [message], [message], parts, parts]
    of_flows, of_workflows = scored(code_url, answers)
    expected = [1.0, 0.5, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, *TEXTS.values()]
    assert [each["rewards"] for each in of_flows] == [[each] for each in expected]
    assert [each["is_correct"] for each in of_flows] == [each == 1.0 for each in expected]
    assert all(each["signals"][0]["reward/failed"] == 0.0 for each in of_flows)
    assert [each["rewards"] for each in of_workflows] == [[each] for each in TEXTS.values()]
    assert [each["is_correct"] for each in of_workflows] == [each > 0 for each in TEXTS.values()]
    assert {each["reason"] for each in of_flows + of_workflows} == {"env_done"}


def test_a_failure_ends_the_run_or_leaves_a_rollout_without_a_trajectory(dead_url: str):
    found = failed(dead_url)
    of_flows, of_workflows = found["ends"]
    assert of_flows.startswith(UNREACHABLE)
    assert of_workflows == "Exception: [0:0] Rollout failed permanently after 3 attempts."
    nothing = {"reason": "error", "is_correct": False, "rewards": [], "signals": []}
    assert found["drops"] == [[nothing], [nothing]]
