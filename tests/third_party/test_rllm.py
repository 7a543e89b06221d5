"""rLLM's engines run agent flows and workflows, with retries, at the commit in sources.toml."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rewardfleet.adapters.rllm import evaluator

from ..adapters.test_rllm import rllm  # noqa: F401 - a fixture
from ..programs import HALF, RIGHT, TESTS, TEXTS
from .peers import Peer, recorded
from .trainers import UNREACHABLE, error_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rllm")]

ROW = {"question": "Add.", "tests": json.dumps(TESTS)}
ADAPTERS = {
    "rllm": lambda url, _: evaluator("code", url),
    "rllm, down": lambda _, down_url: evaluator("code", down_url, timeout_s=0.3),
}

MESSAGE = {"role": "assistant", "content": RIGHT}
PARTS = [MESSAGE | {"content": [{"type": "text", "text": RIGHT}]}]
#: What flows answer, and its reward.
ANSWERS = [(RIGHT, 1.0), (HALF, 0.5), ({"code": RIGHT}, 1.0), ({"code": HALF}, 0.5)]
ANSWERS += [([MESSAGE], 1.0)] * 2 + [(PARTS, 1.0)] * 2


def summary(episode) -> dict[str, object]:
    reason, is_correct = episode.termination_reason.value, bool(episode.is_correct)
    rewards = [float(each.reward) for each in episode.trajectories]
    signals = [each.signals for each in episode.trajectories]
    return {"reason": reason, "is_correct": is_correct, "rewards": rewards, "signals": signals}


async def outcome(engine, count: int) -> object:
    """Return what an engine makes of as many rollouts, or the error that ends the run."""
    try:
        # One after the other, so that a recording has the same order each time.
        runs = [await engine.execute_tasks([ROW], [str(each)]) for each in range(count)]
    except Exception as error:
        return error_of(error)
    return [summary(*each) for each in runs]


async def flows(reward: Any, answers: list[object], texts: list[str], **given: object) -> object:
    """Run flows, some with an answer, and some of which only the model's text is known."""
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

    engine = AgentFlowEngine(Flow(), reward, Gateway(), "policy", **given)
    return await outcome(engine, len(answers) + len(texts))


async def workflows(reward: Any, texts: list[str], **given: object) -> object:
    from rllm.engine.agent_workflow_engine import AgentWorkflowEngine
    from rllm.engine.rollout import ModelOutput
    from rllm.workflows.simple_workflow import SimpleWorkflow

    async def reply(messages, application_id: str) -> ModelOutput:
        return ModelOutput(reasoning="", content=texts[int(application_id.partition(":")[0])])

    rollouts = SimpleNamespace(get_model_response=reply)
    engine = AgentWorkflowEngine(SimpleWorkflow, {"reward_function": reward}, rollouts, **given)
    return await outcome(engine, len(texts))


@recorded("rllm", ADAPTERS)
async def rolled_out(peer: Peer) -> dict[str, Any]:
    up, down = peer.adapter("rllm"), peer.adapter("rllm, down")
    found = {
        "flows": await flows(up, [each for each, _ in ANSWERS], [*TEXTS]),
        "workflows": await workflows(up, [*TEXTS]),
    }
    for name, raises in {"ends": True, "drops": False}.items():
        of_flows = await flows(down, [RIGHT], [], raise_on_error=raises)
        found[name] = [of_flows, await workflows(down, [RIGHT], raise_on_error=raises)]
    return found


async def test_rollouts_get_their_rewards_and_a_failure_ends_the_run_or_leaves_no_trajectory(
    code_url: str, dead_url: str
):
    found = await rolled_out(code_url, dead_url)
    of_flows, of_workflows = found["flows"], found["workflows"]
    expected = [*(reward for _, reward in ANSWERS), *TEXTS.values()]
    assert [each["rewards"] for each in of_flows] == [[each] for each in expected]
    assert [each["is_correct"] for each in of_flows] == [each == 1.0 for each in expected]
    assert all(each["signals"][0]["reward/failed"] == 0.0 for each in of_flows)
    assert [each["rewards"] for each in of_workflows] == [[each] for each in TEXTS.values()]
    assert [each["is_correct"] for each in of_workflows] == [each > 0 for each in TEXTS.values()]
    assert {each["reason"] for each in of_flows + of_workflows} == {"env_done"}
    of_flows, of_workflows = found["ends"]
    assert of_flows.startswith(UNREACHABLE)
    assert of_workflows == "Exception: [0:0] Rollout failed permanently after 3 attempts."
    nothing = {"reason": "error", "is_correct": False, "rewards": [], "signals": []}
    assert found["drops"] == [[nothing], [nothing]]
