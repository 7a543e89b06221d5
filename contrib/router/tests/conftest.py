"""A tiny actor, a tokenizer with a chat template, and a tools service that loses its state."""

import os
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rewardfleet_server.run_state import open_run_state
from rewardfleet_server.testing import serving
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

EXAMPLES = Path(__file__).parents[3] / "examples"

#: The published command, with its values.
PUBLISHED = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=dataset/train_router.parquet",
    "data.val_files=dataset/test_router.parquet",
    "data.train_batch_size=512",
    "data.val_batch_size=128",
    "data.max_prompt_length=2048",
    "data.max_response_length=1024",
    "actor_rollout_ref.model.path=/path/to/model",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "router.enable=true",
    "router.budget_B=0.3",
    "router.cost_weights.any_tool=1.0",
    "trainer.save_freq=200",
    "trainer.save_on_exit=true",
    "trainer.project_name=router_grpo",
    "trainer.experiment_name=baseline_router",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.total_epochs=15",
)

#: The vocabulary of the tokenizer; other words are one unknown token.
WORDS = [
    "<pad>",
    "<unk>",
    "<eos>",
    "system",
    "user",
    "assistant",
    ":",
    "sum",
    "find",
    "add",
    "city",
]
TEMPLATE = (
    "{% if note is defined %}{{ note }} {% endif %}"
    "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} <eos> "
    "{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)


@pytest.fixture(autouse=True)
def _no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("REWARDFLEET_", "OTEL_", "OPENAI_")):
            monkeypatch.delenv(name)


class LosableState:
    """The run state of a tools service, which can be lost, as when the service restarts.

    Attributes:
        lose_before: The method of `RunState` before whose next call the state is lost.
        losses: How often it was lost.
    """

    def __init__(self) -> None:
        self.lose_before: str | None = None
        self.losses = -1
        self._stores: list[Any] = []
        self.lose()

    def lose(self) -> None:
        self._stores.append(open_run_state(ToolsSettings()))
        self.losses += 1

    def __getattr__(self, name: str) -> Any:
        if name == self.lose_before:
            self.lose_before = None
            self.lose()
        return getattr(self._stores[-1], name)

    async def aclose(self) -> None:
        for store in self._stores:
            await store.aclose()


@pytest.fixture
def losable() -> Iterator[tuple[str, LosableState]]:
    """The URL of a tools service, and its state."""
    state = LosableState()
    with serving(create_app(ToolsSettings(), state)) as url:
        yield url, state


@pytest.fixture(scope="session")
def tokenizer():
    """Words are tokens. A text that is not a chat gets <eos> in front."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", WORDS.index("<eos>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        chat_template=TEMPLATE,
    )


def tiny_llama(**config: Any) -> Any:
    """Return a Llama of hidden size 16 with random weights, two layers unless `config` differs."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes | config))


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """The module examples/router_budget.py: its prompts, model, responder and optimum."""
    spec = spec_from_file_location("router_budget", EXAMPLES / "router_budget.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def actor():
    """A Llama of two layers with random weights, and a head with random weights."""
    import torch

    from rewardfleet_router.head import RouterActor, RouterHead

    torch.set_num_threads(1)
    actor = RouterActor(tiny_llama(vocab_size=len(WORDS)).eval(), RouterHead(16))
    torch.nn.init.normal_(actor.head.linear.weight)
    return actor
