"""Batches: prompts rewritten for their routes, in verl's layout.

In shapes, B is the number of prompts (each copy counts), P the padded length of a prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardfleet.wire.tools import Family

from .head import RouterOutput, choose_routes, log_prob_of, position_ids_of
from .routes import ROUTES, Message, Route, RouteTexts, rewrite_prompt

#: What to do with a prompt that is too long, as in verl's `data.truncation`.
Truncation = Literal["error", "left", "right"]
#: The fields of a batch of prompts.
PROMPT_FIELDS = ("input_ids", "attention_mask", "position_ids")
#: Arguments of `apply_chat_template`.
TemplateOptions = Mapping[str, Any]


def encode_prompts(
    prompts: Iterable[Iterable[Mapping[str, Any]]],
    tokenizer: Any,
    length: int | None,
    *,
    truncation: Truncation = "error",
    template: TemplateOptions | None = None,
) -> dict[str, Tensor]:
    """Return chat prompts as `input_ids`, `attention_mask` and `position_ids`, [B, P] each.

    They are padded on the left to P = `length`, as verl does.

    Args:
        prompts: [B] chats.
        tokenizer: A tokenizer of transformers, with a chat template.
        length: P, `data.max_prompt_length`; None: that of the longest prompt.
        truncation: What to do with a prompt of more tokens. "left" removes its beginning,
            "right" its end.
        template: Arguments of `apply_chat_template`, e.g. `enable_thinking`.

    Raises:
        ValueError: A prompt is too long, and `truncation` is "error".
    """
    texts = [
        tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=True,
            **(template or {}),
        )
        for messages in prompts
    ]
    different = list(dict.fromkeys(texts))  # copies of a prompt with the same route are equal
    encoded = tokenizer(different, add_special_tokens=False)["input_ids"] if different else []
    tokens_of = dict(zip(different, encoded, strict=True))
    tokens = [tokens_of[text] for text in texts]
    return pad_prompts(tokens, tokenizer.pad_token_id, length, truncation=truncation)


def pad_prompts(
    tokens: Sequence[Sequence[int]],
    pad_token_id: int,
    length: int | None,
    *,
    truncation: Truncation = "error",
) -> dict[str, Tensor]:
    """Return lists of tokens as `encode_prompts` does.

    Raises:
        ValueError: A prompt is too long, and `truncation` is "error".
    """
    if truncation not in {"error", "left", "right"}:
        raise ValueError(f"truncation: error, left or right (got {truncation!r})")
    length = max(map(len, tokens), default=0) if length is None else length
    input_ids = torch.full((len(tokens), length), pad_token_id, dtype=torch.int64)
    attention_mask = torch.zeros((len(tokens), length), dtype=torch.int64)
    for row, whole in enumerate(tokens):
        if len(whole) > length and truncation == "error":
            raise ValueError(
                f"prompt {row} has {len(whole)} tokens, more than {length}: raise "
                "data.max_prompt_length, or set data.truncation to left or right"
            )
        kept = whole[-length:] if truncation == "left" else whole[:length]
        if kept:
            input_ids[row, -len(kept) :] = torch.as_tensor(kept)
            attention_mask[row, -len(kept) :] = 1
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": position_ids_of(attention_mask),
    }


def choose_group_routes(
    logits: Tensor,
    index: Sequence[Any] | NDArray[Any],
    *,
    sample: bool = True,
    routes_per_prompt: int | None = None,
    generator: torch.Generator | None = None,
) -> RouterOutput:
    """Return a route per copy of a prompt.

    Args:
        logits: [B, 3].
        index: [B], `extra_info.index`; rows with the same one are copies of a prompt.
        sample: Whether to sample; otherwise the most probable route, the same for all copies.
        routes_per_prompt: How many routes are sampled per prompt; its copies take them in turn.
            None: one per copy. With 1, all copies take the same route, and advantages within the
            group teach the router nothing.
        generator: Source of randomness, on the device of the logits.

    Raises:
        ValueError: `routes_per_prompt` is below 1, or the sizes differ.
    """
    if len(index) != len(logits):
        raise ValueError(f"index: one entry per prompt (got {len(index)}, {len(logits)})")
    chosen = choose_routes(logits, sample=sample, generator=generator)
    if routes_per_prompt is None:
        return chosen
    if routes_per_prompt < 1:
        raise ValueError(f"routes_per_prompt: 1 or more (got {routes_per_prompt})")
    rows: dict[Any, list[int]] = {}
    source = []
    for row, group in enumerate(index):
        copies = rows.setdefault(group, [])
        copies.append(row)
        source.append(copies[(len(copies) - 1) % routes_per_prompt])
    action = chosen.action[torch.as_tensor(source, device=chosen.action.device)]
    return RouterOutput(logits, action, log_prob_of(logits, action))


def route_prompts(
    prompts: Sequence[Iterable[Mapping[str, Any]]],
    action: Tensor | Sequence[int],
    families: Sequence[Mapping[str, Family] | None] | None = None,
    *,
    texts: RouteTexts | None = None,
) -> list[list[Message]]:
    """Return prompts, each rewritten for its route.

    Args:
        prompts: [B] chats.
        action: [B], indices into `ROUTES`.
        families: [B], families of tools by name, where known.
        texts: The texts of the routes; see `rewrite_prompt`.

    Raises:
        ValueError: The sizes differ.
    """
    routes = [route_of(one) for one in _integers(action)]
    return [
        rewrite_prompt(messages, route, known, texts=texts)
        for messages, route, known in zip(
            prompts, routes, families or [None] * len(prompts), strict=True
        )
    ]


def routed_gen_batch(
    prompts: Sequence[Iterable[Mapping[str, Any]]],
    action: Tensor | Sequence[int],
    tokenizer: Any,
    length: int,
    *,
    families: Sequence[Mapping[str, Family] | None] | None = None,
    truncation: Truncation = "error",
    template: TemplateOptions | None = None,
    texts: RouteTexts | None = None,
) -> dict[str, Tensor]:
    """Return the `gen_batch` of prompts that are rewritten for their routes.

    It has the fields and shapes of the batch of the original prompts, [B, P]. A longer text may
    not fit in P: leave some 50 tokens for the text of the route, or choose a `truncation`.

    Args:
        prompts: [B] chats, e.g. `raw_prompt`.
        action: [B], indices into `ROUTES`.
        tokenizer: A tokenizer of transformers, with a chat template.
        length: P.
        families: [B], families of tools by name, where known.
        truncation: As in `encode_prompts`.
        template: As in `encode_prompts`.
        texts: The texts of the routes; see `rewrite_prompt`.

    Raises:
        ValueError: A prompt is too long, and `truncation` is "error"; or the sizes differ.
    """
    rewritten = route_prompts(prompts, action, families, texts=texts)
    return encode_prompts(rewritten, tokenizer, length, truncation=truncation, template=template)


def router_fields(output: RouterOutput) -> dict[str, NDArray[Any]]:
    """Return `router_logits` [B, 3], `router_action` [B] and `router_log_prob` [B] as arrays."""
    return {
        "router_logits": output.logits.detach().float().cpu().numpy(),
        "router_action": output.action.cpu().numpy(),
        "router_log_prob": output.log_prob.detach().float().cpu().numpy(),
    }


def store_routes(data: Any, output: RouterOutput) -> None:
    """Store the routes of a batch in its `non_tensor_batch`, and their names in its `meta_info`.

    Args:
        data: A `DataProto` of verl, or what has these two dictionaries.
        output: The routes, in the order of the batch.
    """
    data.non_tensor_batch.update(router_fields(output))
    data.meta_info["router_routes"] = [route.value for route in ROUTES]


def stored_routes(data: Any) -> RouterOutput:
    """Return what `store_routes` stored, as tensors on the CPU."""
    fields = data.non_tensor_batch
    return RouterOutput(
        *(
            torch.as_tensor(np.asarray(fields[name]))
            for name in ("router_logits", "router_action", "router_log_prob")
        )
    )


def route_of(action: int) -> Route:
    """Return the route of an action.

    Raises:
        ValueError: There is no such action.
    """
    if not 0 <= action < len(ROUTES):
        raise ValueError(f"action: in [0, {len(ROUTES) - 1}] (got {action})")
    return ROUTES[action]


def _integers(action: Tensor | Sequence[int]) -> list[int]:
    return [int(one) for one in (action.tolist() if isinstance(action, Tensor) else action)]
