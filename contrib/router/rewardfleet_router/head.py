"""The router head: from the hidden states of an actor to one of the routes.

In shapes, B is the number of prompts, P the padded length of a prompt, H the hidden size.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .routes import ROUTES

#: How the hidden states of a prompt become one vector.
Pooling = Literal["last", "mean"]


class RouterOutput(NamedTuple):
    """Routes of a batch of prompts.

    Attributes:
        logits: [B, 3], float32.
        action: [B], int64, indices into `ROUTES`.
        log_prob: [B], float32, the log-probability of the action.
    """

    logits: Tensor
    action: Tensor
    log_prob: Tensor


class RouterHead(nn.Module):  # type: ignore[misc]  # no torch where types are checked
    """A linear layer on the normalized hidden state of a prompt.

    Its weights begin at 0, so all routes are equally probable at first. It computes in float32.

    Args:
        hidden_size: H.
        pooling: "last": the hidden state of the last token of the prompt. "mean": the mean over
            its tokens.
    """

    def __init__(self, hidden_size: int, pooling: Pooling = "last") -> None:
        super().__init__()
        if pooling not in {"last", "mean"}:
            raise ValueError(f"pooling: last or mean (got {pooling!r})")
        self.hidden_size = hidden_size
        self.pooling: Pooling = pooling
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.linear = nn.Linear(hidden_size, len(ROUTES))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits [B, 3], float32.

        Args:
            hidden: [B, P, H], the last hidden states of the actor.
            attention_mask: [B, P], 1 for tokens of the prompt; padded on the left or right.

        Raises:
            ValueError: A prompt is empty.
        """
        return self.classify(self.pool(hidden, attention_mask))

    def pool(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one vector per prompt, [B, H], float32; see `forward`."""
        mask = attention_mask.bool()
        if not bool(mask.any(dim=-1).all()):
            raise ValueError("attention_mask: a prompt without tokens has no route")
        if self.pooling == "last":
            rows = torch.arange(hidden.shape[0], device=hidden.device)
            return hidden[rows, last_positions(mask)].float()
        weights = mask.unsqueeze(-1).float()
        return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

    def classify(self, pooled: Tensor) -> Tensor:
        """Return the logits [B, 3], float32, of what `pool` returned."""
        with torch.autocast(device_type=pooled.device.type, enabled=False):
            logits: Tensor = nn.functional.linear(
                self.norm(pooled), self.linear.weight.float(), self.linear.bias.float()
            )
        return logits


class RouterActor(nn.Module):  # type: ignore[misc]  # likewise
    """An actor language model with a router head.

    Args:
        model: A causal language model of transformers, wrapped or not.
        head: The head; its `hidden_size` is that of the model.
    """

    def __init__(self, model: Any, head: RouterHead) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the routes, [B, 3], float32, with their gradient.

        Args:
            input_ids: [B, P], prompts.
            attention_mask: [B, P].
            position_ids: [B, P]; None: counted from the first token of each prompt.
        """
        hidden = last_hidden_state(self.model, input_ids, attention_mask, position_ids)
        logits: Tensor = self.head(hidden, attention_mask)
        return logits

    def route(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        sample: bool = True,
        generator: torch.Generator | None = None,
        position_ids: Tensor | None = None,
    ) -> RouterOutput:
        """Return the route of each prompt.

        Args:
            input_ids: [B, P], prompts.
            attention_mask: [B, P], 1 for tokens of the prompt; padded on the left or right.
            sample: Whether to sample the route; otherwise it is the most probable one.
            generator: Source of randomness, on the device of the logits.
            position_ids: [B, P]; None: counted from the first token of each prompt.
        """
        return choose_routes(
            self(input_ids, attention_mask, position_ids), sample=sample, generator=generator
        )


def choose_routes(
    logits: Tensor, *, sample: bool = True, generator: torch.Generator | None = None
) -> RouterOutput:
    """Return a route per row of logits.

    Args:
        logits: [B, 3].
        sample: Whether to sample; otherwise the most probable route, the first of equal ones.
        generator: Source of randomness, on the device of the logits.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    if sample:
        probabilities = log_probs.detach().exp()
        action = torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)
    else:
        action = log_probs.argmax(dim=-1)
    return RouterOutput(logits, action, log_prob_of(logits, action))


def log_prob_of(logits: Tensor, action: Tensor) -> Tensor:
    """Return the log-probability of actions, [B], float32.

    Args:
        logits: [B, 3].
        action: [B].
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def last_positions(attention_mask: Tensor) -> Tensor:
    """Return the position of the last token of each prompt, [B]; whatever the padding side."""
    mask = attention_mask.bool()
    last: Tensor = mask.shape[-1] - 1 - mask.flip(-1).int().argmax(dim=-1)
    return last


def position_ids_of(attention_mask: Tensor) -> Tensor:
    """Return positions [B, P] that count from 0 at the first token of each prompt."""
    positions: Tensor = (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)
    return positions


def last_hidden_state(
    model: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
) -> Tensor:
    """Return the last hidden states of a causal language model, [B, P, H].

    The model is called as a whole, so that wrappers such as FSDP gather its weights, with the
    logits of one token only.

    Args:
        model: A causal language model of transformers, wrapped or not.
        input_ids: [B, P].
        attention_mask: [B, P].
        position_ids: [B, P]; None: counted from the first token of each prompt.
    """
    if position_ids is None:
        position_ids = position_ids_of(attention_mask)
    inner = getattr(model, "module", model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    captured: list[Tensor] = []

    def capture(_module: Any, _args: Any, output: Any) -> None:
        captured.append(output[0])

    hook = inner.base_model.register_forward_hook(capture)
    try:
        model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
            **_one_logit(type(inner)),
        )
    finally:
        hook.remove()
    return captured[0]


def _one_logit(model_class: type) -> Mapping[str, int]:
    # Models of remote code may lack the argument; they compute all logits.
    forward = inspect.signature(model_class.forward)  # type: ignore[attr-defined]  # a Module
    return {"logits_to_keep": 1} if "logits_to_keep" in forward.parameters else {}
