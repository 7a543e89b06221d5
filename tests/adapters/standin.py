"""What a trainer has, small and plain: a tokenizer, a batch as verl's DataProto, log-probabilities.

The README's program runs on these, too.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

EOS = 0


class CharTokenizer:
    """A token a character; 0 ends a text. It decodes plain lists of ints alone."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text] + [EOS]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        assert isinstance(token_ids, list) and all(type(token) is int for token in token_ids)
        kept = [token for token in token_ids if token != EOS or not skip_special_tokens]
        return "".join("<eos>" if token == EOS else chr(token) for token in kept)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """A strict template: the user begins, then it alternates; nobody else speaks."""
        assert not tokenize and add_generation_prompt
        for turn, message in enumerate(messages):
            assert message["role"] == ("user", "assistant")[turn % 2], message["role"]
            assert message["content"].strip() == message["content"] != ""
        turns = [f"<{message['role']}>{message['content']}<end>" for message in messages]
        return "".join([*turns, "<assistant>"])


@dataclass
class DataProto:
    """The two fields of verl's that are read."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]


def batch_of(ids: list[str], texts: list[str], *, prompt: int = 3, pad: int = 2) -> DataProto:
    """Left-padded prompts of `prompt` tokens, right-padded responses; "" is an empty response."""
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
    """Block, as the driver of a trainer does while its workers compute."""
    time.sleep(seconds)


def generate(prompts: list[str], sampling: Any) -> list[str]:
    """A model that knows one program."""
    return ["```python\nprint(sum(map(int, input().split())))\n```" for _ in prompts]


tokenizer = CharTokenizer()
batch = batch_of(["7", "7"], ["The sum is missing.\n\nOverall judgment: Incorrect", ""])
