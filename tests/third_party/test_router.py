"""The router of its authors, at the commit in sources.toml: the script, and figures of steps."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rewardfleet.tool_use import advantages, lagrange, score_answer
from rewardfleet.wire.tools import BudgetOptions, CostWeights, MultiplierCheckpoint, ToolsOptions
from rewardfleet_router.config import parse_arguments

from ..running import output_of
from .peers import Peer, recorded
from .trainers import ROOT, byte_tokenizer

pytestmark = pytest.mark.slow

#: The one line of the authors' script that changes, as docs/router.md shows it.
LINE = "python -m verl.trainer.main_ppo"
MIGRATED = "python -m rewardfleet_router train"


def call(name: str, **parameters: object) -> str:
    return json.dumps({"name": name, "parameters": parameters})


def answer(*calls: str, think: str = "I see.") -> str:
    used = "<tool_call>\n{}\n</tool_call>\n".format("\n".join(calls)) if calls else ""
    return f"<think> {think} </think>\n{used}<response> Done. </response>"


TRUTHS = (answer(call("get_weather", city="Oslo")), answer(call("sum", a=1, b=2)), answer())
#: Four answers to each, of which one is right.
WRONG = (answer(), answer(call("get_news"), call("average", of=[1, 2])), "no tags")
ANSWERS = tuple(each for truth in TRUTHS for each in (truth, *WRONG))


@recorded("toolrl_router")
def original(peer: Peer) -> dict[str, Any]:
    """The arguments of the script, and steps of the authors' trainer with four answers a prompt."""
    import torch
    import verl
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.router.budget import RouterBudgetController
    from verl.utils.reward_score import rlla

    script = Path(verl.__file__).parents[1] / "run_router_training.sh"
    lines = [line for line in script.read_text().splitlines() if line.strip()]
    assert sum(LINE in line for line in lines) == 1

    os.environ["EXPERIMENT_NAME"] = "qwen"  # of the markers around an answer
    truths = [each for each in TRUTHS for _ in range(4)]
    texts = [f"<|im_start|>assistant\n{text}<|im_end|>" for text in ANSWERS]
    pairs = zip(texts, truths, strict=True)
    tasks = [rlla.compute_score(text, truth)[0] for text, truth in pairs]
    tokenizer = byte_tokenizer()
    options = {"padding": True, "add_special_tokens": False, "return_tensors": "pt"}
    responses = tokenizer(list(ANSWERS), **options)["input_ids"]
    scores = torch.zeros(responses.shape)
    scores[:, -1] = torch.tensor(tasks)
    trainer = SimpleNamespace(
        router_enabled=True,
        tokenizer=tokenizer,
        router_decode_kwargs={"skip_special_tokens": True},
        router_cost_weights={"any_tool": 1.0, "search": 0.0, "calculate": 0.0},
        router_budget_ctrl=RouterBudgetController(0.3, 0.01),
    )
    steps = []
    index = np.repeat(np.arange(len(TRUTHS)), 4)
    for _ in range(5):
        batch = SimpleNamespace(batch={"token_level_scores": scores, "responses": responses})
        metrics = RayPPOTrainer._maybe_compute_router_rewards(trainer, batch)
        rewards = batch.batch["router_token_level_rewards"]
        ones = torch.ones(scores.shape)
        values, _ = core_algos.compute_grpo_outcome_advantage(rewards, ones, index)
        columns = {"cost": "router_cost", "reward": "router_sequence_rewards"}
        step = {name: batch.batch[each].tolist() for name, each in columns.items()}
        step |= {"advantage": values[:, -1].tolist(), "lambda": metrics["router/lambda"]}
        steps.append(step)
    return {"arguments": arguments_of(script), "tasks": tasks, "steps": steps}


def arguments_of(script: Path) -> list[str]:
    """Return what the script starts, with a `python` that prints it."""
    printing = 'python() { printf "%s\\n" "$@"; }; export -f python; bash "$0"'
    # The name of the experiment has the time in it.
    printed = re.sub(r"(router-grpo)-[\d-]+", r"\1", output_of("bash", "-c", printing, script))
    return printed[printed.index("-m\n") :].split("\n")[2:-1]


async def test_the_script_is_understood_with_one_line_changed(caplog: pytest.LogCaptureFixture):
    arguments = (await original())["arguments"]
    config = parse_arguments(arguments)
    assert len(arguments) == 40
    assert config.actor_rollout_ref.rollout.n == 1
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert (config.router.budget_B, config.trainer.total_epochs) == (0.3, 15)
    [message] = caplog.messages
    ignored = set(message.partition(": ")[2].split(", "))
    assert "actor_rollout_ref.actor.fsdp_config.grad_offload" in ignored
    assert "trainer.use_reference_policy" in ignored
    assert ignored < {each.partition("=")[0] for each in arguments}
    page = (ROOT / "docs" / "router.md").read_text()
    assert f"-{LINE} " in page and f"+{MIGRATED} " in page


async def test_rewards_costs_lambda_and_advantages_are_those_of_the_authors():
    """With `variant: toolrl`, `controller: dual_ascent` and `advantage: std`, as the page says."""
    found = await original()
    truths = [each for each in TRUTHS for _ in range(4)]
    options = ToolsOptions(variant="toolrl", cost_weights=CostWeights(any_tool=1.0))
    scored = [score_answer(*each, options) for each in zip(ANSWERS, truths, strict=True)]
    task, cost = [each.task for each in scored], [each.cost for each in scored]
    assert task == pytest.approx(found["tasks"], abs=1e-9)
    assert len(set(task)) > 3

    budget = BudgetOptions(budget=0.3, controller="dual_ascent", eta=0.01, max_lambda=1e6)
    state = MultiplierCheckpoint(multiplier=0.0, integral=0.0)
    groups = np.repeat(np.arange(len(TRUTHS)), 4)
    for step in found["steps"]:
        assert cost == step["cost"]
        rewards = np.array(task) - state.multiplier * np.array(cost)
        assert rewards == pytest.approx(step["reward"], abs=1e-6)
        values = advantages(task, cost, groups, state.multiplier, method="std")
        assert values == pytest.approx(step["advantage"], abs=1e-5)
        state = lagrange.update(budget, state, float(np.mean(cost)))
        assert state.multiplier == pytest.approx(step["lambda"], abs=1e-8)
    assert state.multiplier > 0
