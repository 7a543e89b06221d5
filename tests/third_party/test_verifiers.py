"""verifiers 0.4.0: what the trace of a rollout records, by its own task and scoring."""

import sys
from types import ModuleType

import pytest

from rewardfleet.adapters.verifiers import reward_function

from ..programs import RIGHT, TESTS, TEXTS
from .trainers import UNREACHABLE, absent, in_process, needs_clients

pytestmark = [needs_clients, pytest.mark.slow]


@in_process
async def traces(url: str, completions: list[str | None], timeout_s: float) -> list[object]:
    """Return the traces of rollouts, scored by a method and then by a name in the configuration."""
    # Providers, sandboxes and graders.
    absent("anthropic", "connectrpc", "docstring_parser", "jiter", "math_verify", "prime_sandboxes")
    absent("pyqwest", "tomli_w")
    import verifiers.v1 as vf
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, TraceTask

    code_reward = reward_function("code", url, column="tests", timeout_s=timeout_s)
    sys.modules["my_rewards"] = ModuleType("my_rewards")
    sys.modules["my_rewards"].code_reward = code_reward

    class AddData(vf.TaskData):
        tests: dict[str, object]

    class Add(vf.Task[AddData, vf.State]):
        pass

    class AddByMethod(Add):
        @vf.reward(weight=1.0)
        async def code(self, trace) -> float:
            return await code_reward(task=self.data, trace=trace)

    async def scored(task: Add, text: str | None) -> dict[str, object]:
        reply = MessageNode(message=vf.AssistantMessage(content=text), sampled=True)
        seed = TraceTask(type=type(task).__name__, data=task.data)
        trace = vf.Trace(task=seed, agent=AgentInfo(config=vf.AgentConfig()), nodes=[reply])
        try:
            await task.score(trace)
        except vf.TaskError as error:
            trace.record_error(error)  # as `Rollout.close` does
        rewards = {name: each and each.value for name, each in trace.rewards.items()}
        errors = [each.model_dump() for each in trace.errors]
        return {"rewards": rewards, "metrics": trace.metrics, "errors": errors}

    data = AddData(tests=TESTS)
    config = vf.TaskConfig(rewards={"code": {"fn": "my_rewards:code_reward"}})
    tasks = [AddByMethod(data), Add(data, config)]
    return [await scored(task, text) for task in tasks for text in completions]


@pytest.mark.slice
def test_rollouts_get_their_rewards(code_url: str):
    found = traces(code_url, [*TEXTS, None], 60)
    assert [each["errors"] for each in found] == [[]] * len(found)
    assert [each["rewards"] for each in found] == [
        {"code": each} for each in [*TEXTS.values(), 0.0] * 2
    ]
    assert all(each["metrics"]["reward/failed"] == 0.0 for each in found)


def test_a_failure_is_an_error_of_the_rollout_without_a_reward(dead_url: str):
    for found in traces(dead_url, [RIGHT], 0.5):
        assert found["rewards"] == {"code": None}
        (error,) = found["errors"]
        assert error["type"] == "TaskError"
        assert error["message"].partition(" scoring: ")[2].startswith(UNREACHABLE)
