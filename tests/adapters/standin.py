"""Small stand-ins for a trainer: a tokenizer, a batch like verl's DataProto, log-probabilities.

The programs of the documentation use them as well.
"""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

EOS = 0


class CharTokenizer:
    """One token per character; 0 ends a text. It decodes lists of ints only."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text] + [EOS]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        assert isinstance(token_ids, list) and all(type(token) is int for token in token_ids)
        tokens = [token for token in token_ids if token != EOS or not skip_special_tokens]
        return "".join("<eos>" if token == EOS else chr(token) for token in tokens)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Apply a strict template: user and assistant alternate, the user first, no other role."""
        assert not tokenize and add_generation_prompt
        for turn, message in enumerate(messages):
            assert message["role"] == ("user", "assistant")[turn % 2], message["role"]
            assert message["content"].strip() == message["content"] != ""
        turns = [f"<{message['role']}>{message['content']}<end>" for message in messages]
        return "".join([*turns, "<assistant>"])


@dataclass
class DataProto:
    """What the adapters use of verl's DataProto."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any] = field(default_factory=dict)

    def slice(self, rows: Any) -> "DataProto":
        others = {name: each[np.asarray(rows)] for name, each in self.non_tensor_batch.items()}
        return DataProto({name: each[rows] for name, each in self.batch.items()}, others)


def batch_of(ids: list[str], texts: list[str], *, prompt: int = 3, pad: int = 2) -> DataProto:
    """Return left-padded prompts of `prompt` tokens and right-padded responses; "" is empty."""
    tokenizer = CharTokenizer()
    tokens = [tokenizer.encode(text) if text else [] for text in texts]
    width = max(len(each) for each in tokens) + pad
    responses = np.zeros((len(ids), width), np.int64)
    mask = np.zeros((len(ids), prompt + width), np.int64)
    mask[:, 1:prompt] = 1
    for row, each in enumerate(tokens):
        responses[row, : len(each)] = each
        mask[row, prompt : prompt + len(each)] = 1
    prompts = np.ones((len(ids), prompt), np.int64)
    return DataProto(
        {"prompts": prompts, "responses": responses, "attention_mask": mask},
        {"problem_id": np.array(ids, dtype=object)},
    )


def compute_ref_log_prob(batch: DataProto, seconds: float = 0.0) -> None:
    """Block, like the driver of a trainer while its workers compute."""
    time.sleep(seconds)


def generate(prompts: list[str]) -> list[str]:
    """Return the same program for every prompt."""
    return ["```python\nprint(sum(map(int, input().split())))\n```" for _ in prompts]


class Config(dict[str, Any]):
    """A config like OmegaConf's: fields as attributes, and `get`."""

    __getattr__ = dict.__getitem__


config = Config(test_time_rl=True, reward_model=Config())
gen_batch = SimpleNamespace(meta_info={"n_samples": 2})
meta_info = gen_batch.meta_info
tokenizer = CharTokenizer()
batch = batch_of(["7", "7"], ["The sum is missing.\n\nOverall judgment: Incorrect", ""])
