"""The prompts of rows as tokens."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .batch import encode_prompts, pad_prompts
from .config import Data
from .rows import Row


class TokenizedPrompts:
    """The prompts of rows as tokens. Each is tokenized once.

    Args:
        tokenizer: A tokenizer of transformers, with a chat template and a padding token.
        data: The configuration.
    """

    def __init__(self, tokenizer: Any, data: Data) -> None:
        self._tokenizer = tokenizer
        self._data = data
        self._tokens: dict[Row, list[int]] = {}

    def check_lengths(self, rows: Sequence[Row]) -> None:
        """Check prompts before the run, which would end at the first one that is too long.

        Raises:
            ValueError: A prompt is too long, and `data.truncation` is "error".
        """
        data = self._data
        if data.truncation != "error":
            return
        for start in range(0, len(rows), data.val_batch_size):
            part = rows[start : start + data.val_batch_size]
            for row, tokens in zip(part, self._tokenized(part), strict=True):
                if len(tokens) > data.max_prompt_length:
                    raise ValueError(
                        f"the prompt with the index {row.index} has {len(tokens)} tokens, more "
                        f"than {data.max_prompt_length}: raise data.max_prompt_length, or set "
                        "data.truncation to left or right"
                    )

    def batch(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return prompts as `encode_prompts` does, padded to the longest one.

        Raises:
            ValueError: A prompt is too long, and `data.truncation` is "error".
        """
        data = self._data
        tokens = self._tokenized(rows)
        length = min(max(map(len, tokens)), data.max_prompt_length)
        return pad_prompts(tokens, self._tokenizer.pad_token_id, length, truncation=data.truncation)

    def _tokenized(self, rows: Sequence[Row]) -> list[list[int]]:
        if new := [row for row in dict.fromkeys(rows) if row not in self._tokens]:
            encoded = encode_prompts([row.prompt for row in new], self._tokenizer, None)
            fields = zip(new, encoded["input_ids"], encoded["attention_mask"], strict=True)
            self._tokens |= {row: ids[mask.bool()].tolist() for row, ids, mask in fields}
        return [self._tokens[row] for row in rows]
