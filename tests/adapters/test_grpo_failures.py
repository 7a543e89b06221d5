"""A GRPO run in TRL 1.16 whose replica of the code service is killed in the middle of a step.

What is left of each group must have the advantages, and the policy the gradient, of the samples
that were scored, as if there had been no others.
"""

import math
import signal
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from rewardfleet import blocking, code_request  # noqa: E402
from rewardfleet.episodes import Grouping, normalize  # noqa: E402

from ..server.processes import service_process  # noqa: E402

# Warnings are of torch, accelerate and transformers.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

#: The policy writes programs of a few of these words.
WORDS = ["<pad>", "<eos>", "print(1);", "print(2);", "pass;", "#"]
#: A program that prints one line, or nothing, passes a third of them; any other one passes none.
TESTS = {"kind": "stdio", "cases": [{"stdin": "", "stdout": each} for each in ("1", "2", "")]}
#: TRL adds this to standard deviations.
EPSILON = 1e-4
#: Samples of a step: two prompts, eight of each.
PROMPTS, GROUP = 2, 8


@pytest.fixture
def tokenizer():
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<pad>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


@pytest.fixture
def policy():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


class RecordingTrainer(trl.GRPOTrainer):
    """Keeps what each step was trained on, and the gradients of its parts."""

    def __init__(self, *args, rewards: list[list[float]], **given) -> None:
        #: Of each: rewards, advantages, the gradient of all samples, of those with a reward alone.
        self.steps: list[dict] = []
        self._scored = rewards
        super().__init__(*args, **given)

    def _generate_and_score_completions(self, inputs):
        outputs = super()._generate_and_score_completions(inputs)
        rewards = torch.tensor(self._scored[-1])
        scored = ~rewards.isnan()
        step = {"rewards": rewards.numpy(), "advantages": outputs["advantages"].numpy()}
        step["all"] = self._gradient(outputs, torch.ones_like(scored))
        step["scored"] = self._gradient(outputs, scored)
        step["share"] = outputs["completion_mask"][scored].sum() / outputs["completion_mask"].sum()
        self.steps.append(step)
        return outputs

    def _gradient(self, outputs, rows):
        """Return the gradient of the loss of some samples, as if there were no others."""
        arrays = {name for name, each in outputs.items() if torch.is_tensor(each) and each.ndim}
        batch = {name: each[rows] if name in arrays else each for name, each in outputs.items()}
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
        training, self.model.training = self.model.training, True
        loss = self.compute_loss(self.model, batch)
        self.model.training = training
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([each.flatten() for each in gradients])


def train(folder, model, reward_function, rewards, steps: int):
    options = {"max_steps": steps, "num_generations": GROUP, "max_completion_length": 4}
    options |= {"per_device_train_batch_size": PROMPTS * GROUP, "learning_rate": 1e-3, "seed": 1}
    options |= {"report_to": [], "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    given = {"train_dataset": datasets.Dataset.from_dict({"prompt": ["#"] * 8}), "rewards": rewards}
    given["args"] = trl.GRPOConfig(str(folder), disable_tqdm=True, bf16=False, **options)
    policy, given["processing_class"] = model
    trainer = RecordingTrainer(policy, reward_funcs=reward_function, **given)
    trainer.train()
    return trainer


def expected_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return what the scored samples of each group have if there are no others; else 0."""
    result = np.zeros(len(rewards))
    for first in range(0, len(rewards), GROUP):
        rows = first + np.flatnonzero(~np.isnan(rewards[first : first + GROUP]))
        if len(rows) > 1:
            values = rewards[rows]
            result[rows] = (values - values.mean()) / (values.std(ddof=1) + EPSILON)
    return result


@pytest.mark.slice
def test_killing_a_replica_leaves_the_scored_samples_as_if_there_were_no_others(
    tmp_path, policy, tokenizer
):
    rewards: list[list[float]] = []
    killed_in = 1  # counted from 0: the second step
    fleet_of = partial(blocking.RewardFleet, on_failure=math.nan)
    with (
        service_process("code", "--workers", "1") as (process, url),
        fleet_of(code=url, timeout_s=120, max_concurrency=2) as fleet,
        fleet_of(code=url, timeout_s=5) as impatient,
    ):
        impatient.code.rewards([code_request("pass;", TESTS)])  # its address works

        def reward_function(completions, **_):
            requests = [code_request(text, TESTS) for text in completions]
            # Members 5 to 7 of the first group, and all but the first of the second one.
            lost = [5, 6, 7, *range(GROUP + 1, 2 * GROUP)] if len(rewards) == killed_in else []
            scored = [each for at, each in enumerate(requests) if at not in lost]
            values = iter(fleet.code.rewards(scored))
            if lost:
                process.send_signal(signal.SIGKILL)
                process.wait()
                missing = iter(impatient.code.rewards([requests[at] for at in lost]))
            rewards.append([next(missing if at in lost else values) for at in range(len(requests))])
            return rewards[-1]

        trainer = train(tmp_path, (policy, tokenizer), reward_function, rewards, killed_in + 1)

    assert np.isnan(rewards[killed_in]).sum() == 3 + GROUP - 1
    assert not np.isnan(rewards[0]).any()
    for number, step in enumerate(trainer.steps):
        given = step["rewards"].astype(float)
        expected = expected_advantages(given)
        assert step["advantages"] == pytest.approx(expected, abs=1e-5)
        assert np.abs(expected).max() > 0.3, "the step trains on something"
        torch.testing.assert_close(step["all"], step["scored"] * step["share"])
        assert step["all"].norm() > 1e-4
        is_zero = expected_advantages(np.nan_to_num(given, nan=0.0))
        assert (np.abs(is_zero - expected).max() > 0.1) == (number == killed_in)
    grouping = Grouping(np.repeat(range(PROMPTS), GROUP), PROMPTS)
    ours = normalize(rewards[killed_in], grouping, by_std=True)
    assert np.nan_to_num(ours) == pytest.approx(trainer.steps[killed_in]["advantages"], abs=2e-3)
    logged = trainer.state.log_history[killed_in]
    assert logged["reward"] == pytest.approx(np.nanmean(rewards[killed_in]))
    assert not any(math.isnan(value) for value in logged.values() if isinstance(value, float))
