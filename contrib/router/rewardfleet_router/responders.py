"""Who answers a routed prompt: the actor, or a function that you provide."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .batch import Truncation, encode_prompts, route_of, route_prompts
from .routes import Message, Route
from .rows import Row


class Rollout(NamedTuple):
    """A prompt to answer.

    Attributes:
        messages: The prompt, rewritten for its route.
        route: The route.
        row: The row of the dataset.
    """

    messages: list[Message]
    route: Route
    row: Row


class Responder(Protocol):
    """Answers prompts. A training run repeats exactly if the answers depend on `generator` only."""

    def __call__(self, rollouts: Sequence[Rollout], *, generator: np.random.Generator) -> list[str]:
        """Return the text of one answer per prompt, without the prompt."""


class ActorResponder:
    """The actor itself: it generates with transformers.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer, with a chat template.
        max_prompt_length: Tokens of a rewritten prompt.
        max_response_length: Tokens to generate, at most.
        temperature: Above 0.
        truncation: What happens to a prompt that is longer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_prompt_length: int,
        max_response_length: int,
        temperature: float = 1.0,
        truncation: Truncation = "error",
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._max_prompt_length = max_prompt_length
        self._max_response_length = max_response_length
        self._temperature = temperature
        self._truncation = truncation

    @torch.no_grad()  # type: ignore[untyped-decorator] # torch is not installed here
    def __call__(self, rollouts: Sequence[Rollout], *, generator: np.random.Generator) -> list[str]:
        """Generate one answer per prompt."""
        gen_batch = encode_prompts(
            [rollout.messages for rollout in rollouts],
            self._tokenizer,
            self._max_prompt_length,
            truncation=self._truncation,
        )
        device = self._model.device
        # transformers samples with torch's global generator.
        torch.manual_seed(int(generator.integers(2**63 - 1)))
        generated = self._model.generate(
            input_ids=gen_batch["input_ids"].to(device),
            attention_mask=gen_batch["attention_mask"].to(device),
            do_sample=True,
            temperature=self._temperature,
            top_k=0,
            max_new_tokens=self._max_response_length,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        responses = generated[:, gen_batch["input_ids"].shape[1] :]
        texts: list[str] = self._tokenizer.batch_decode(responses, skip_special_tokens=True)
        return texts


def load_responder(name: str) -> Responder:
    """Import a responder named `module:attribute`.

    Raises:
        ValueError: The name has another form, or there is no such attribute.
        ImportError: There is no such module.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"router.responder: give actor or module:attribute (got {name!r})")
    found = getattr(import_module(module), attribute, None)
    if not callable(found):
        raise ValueError(  # noqa: TRY004 - the value of a setting
            f"router.responder: {module} has no function {attribute!r}"
        )
    responder: Responder = found
    return responder


def answer_rows(
    responder: Responder, rows: Sequence[Row], action: Tensor, generator: np.random.Generator
) -> list[str]:
    """Rewrite prompts for their routes, and have them answered.

    Args:
        responder: Who answers.
        rows: [N], with all copies of each.
        action: [N], routes.
        generator: Source of randomness of the responder.

    Raises:
        ValueError: The responder gave more or fewer answers.
    """
    actions = action.tolist()
    # Copies of a prompt with the same route are rewritten once.
    distinct = list(dict.fromkeys(zip(rows, actions, strict=True)))
    rewritten = route_prompts(
        [row.prompt for row, _ in distinct],
        [one for _, one in distinct],
        [row.labels.families for row, _ in distinct],
    )
    prompts = dict(zip(distinct, rewritten, strict=True))
    rollouts = [
        Rollout(prompts[row, one], route_of(one), row)
        for row, one in zip(rows, actions, strict=True)
    ]
    responses = responder(rollouts, generator=generator)
    if len(responses) != len(rollouts):
        raise ValueError(f"the responder gave {len(responses)} answers to {len(rollouts)}")
    return responses
