"""TRL's own trainer, with a policy that writes random bytes."""

import asyncio
import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from datasets import Dataset
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

from rewardfleet.adapters.trl import reward_function

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 30
#: A program that does nothing passes the first.
TESTS = {"kind": "stdio", "cases": [{"stdin": "", "stdout": ""}, {"stdin": "", "stdout": "5"}]}


def test_a_policy_that_writes_random_bytes_is_trained_for_30_steps(code_url: str, tmp_path: Path):
    """Empty programs and NUL characters are among what it writes."""
    torch.set_num_threads(1)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    score = reward_function("code", code_url)
    scored: dict[str, float] = {}

    async def code_reward(completions: list[str], **columns: object) -> list[float]:
        rewards = await score(completions=completions, **columns)
        scored.update(zip(completions, rewards, strict=True))
        return rewards

    trainer = trl.GRPOTrainer(
        model,
        reward_funcs=code_reward,
        args=trl.GRPOConfig(
            str(tmp_path),
            seed=0,
            max_steps=STEPS,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=8,
            learning_rate=1e-3,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": f"print {number}", "tests": json.dumps(TESTS)} for number in range(4)]
            * STEPS
        ),
        processing_class=tokenizer,
    )
    trainer.train()
    fleet = score.keywords["scorer"]._fleet
    asyncio.run_coroutine_threadsafe(fleet.aclose(), trainer.async_loop).result(30)
    steps = [each for each in trainer.state.log_history if "reward" in each]
    assert len(steps) == STEPS
    assert all(math.isfinite(value) for step in steps for value in step.values())
    assert any("\0" in program for program in scored)
    assert "" in scored
    assert {0.0, 0.5} <= set(scored.values()) <= {0.0, 0.5, 1.0}
    assert any(step["grad_norm"] > 0 for step in steps)
