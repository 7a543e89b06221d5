"""AReaL 1.0.4: its executor runs groups of the workflow of docs/trainers/areal.md."""

import json
import logging

import pytest

from rewardfleet.adapters.areal import reward_function

from ..programs import HALF, TESTS, TEXTS
from .trainers import UNREACHABLE, absent, error_of, in_process, needs_clients

pytestmark = [needs_clients, pytest.mark.slow]

END = "<|im_end|>"


class Tokenizer:
    """One token per character; 0 is the end."""

    pad_token_id = eos_token_id = 0

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(each) if each else END for each in tokens)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> dict[str, object]:
        return {"input_ids": [ord(each) for each in messages[-1]["content"]]}


@in_process
def rolled_out(services: dict[str, float], texts: list[str]) -> dict[str, object]:
    """Return the rewards of groups, one per service with a timeout, of what a policy writes."""
    # Servers, parsers, and what compiles.
    absent("aiofiles", "blinker", "einops", "flask", "jiter", "lark", "numba")
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.api.io_struct import ModelResponse
    from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
    from areal.infra.workflow_executor import WorkflowExecutor
    from areal.utils import stats_tracker
    from areal.workflow.rlvr import RLVRWorkflow

    class CodeWorkflow(RLVRWorkflow):
        def __init__(self, url: str, timeout_s: float, **given: object) -> None:
            super().__init__(reward_fn=None, **given)
            self.async_reward_fn = reward_function("code", url, timeout_s=timeout_s)

    class Engine:
        def get_version(self) -> int:
            return 0

        async def agenerate(self, request) -> ModelResponse:
            tokens = [*map(ord, written.pop(0)), Tokenizer.eos_token_id]
            zeros = [0] * len(tokens)
            return ModelResponse(request.input_ids, tokens, zeros, zeros)

    errors: list[str] = []
    logger = logging.getLogger("rollouts")
    logger.error = lambda message, error, **_: errors.append(message % error_of(error))
    config = InferenceEngineConfig(consumer_batch_size=1, max_concurrent_rollouts=1)
    executor = WorkflowExecutor(config, Engine())
    executor.initialize(logger)
    rewards = []
    for url, timeout_s in services.items():
        written = texts.copy()
        parameters = GenerationHyperparameters()
        workflow = CodeWorkflow(url, timeout_s, gconfig=parameters, tokenizer=Tokenizer())
        group = GroupedRolloutWorkflow(workflow, len(texts), logger)
        row = {"messages": [{"role": "user", "content": "Add."}], "tests": json.dumps(TESTS)}
        executor.submit(row, group)
        (trajectory,) = executor.wait(1)
        rewards.append(trajectory and trajectory["rewards"].tolist())
    executor.destroy()
    return {"rewards": rewards, "errors": errors, "statistics": stats_tracker.export_all()}


@pytest.mark.slice
def test_groups_get_their_rewards_and_one_without_a_reward_is_rejected(
    code_url: str, dead_url: str
):
    texts = [*TEXTS, HALF]
    found = rolled_out({dead_url: 0.5, code_url: 60}, texts)
    expected = [*TEXTS.values(), 0.5]
    assert found["rewards"] == [None, expected]
    (error,) = found["errors"]
    assert error.startswith(tuple(f"Workflow execution failed: {each}" for each in UNREACHABLE))
    statistics = found["statistics"]
    assert statistics["rollout/reward"] == pytest.approx(sum(expected) / len(expected))
    assert statistics["rollout/rejected"] == 1
    assert statistics["rollout/reward/failed"] == statistics["rollout/reward/abstained"] == 0.0
