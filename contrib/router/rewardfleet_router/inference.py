"""Inference: the actor of a checkpoint; prompt, route, rewritten prompt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rewardfleet.wire.tools import Family

from .batch import TemplateOptions, Truncation, encode_prompts, route_of
from .checkpoint import MANIFEST_FILE, checkpoints, load_head
from .head import RouterActor
from .routes import ROUTES, Message, Route, RouteTexts, rewrite_prompt


def load_actor(folder: str | Path, device: str | torch.device = "cpu") -> tuple[RouterActor, Any]:
    """Return the actor with its head, in the mode `eval()`, and its tokenizer, of a checkpoint.

    Args:
        folder: A checkpoint, or the folder of a run, whose newest checkpoint is loaded.
        device: Where to.

    Raises:
        ValueError: There is no checkpoint.
    """
    from transformers import (  # noqa: PLC0415 - `route_prompt` works without
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    folder = Path(folder)
    if (folder / MANIFEST_FILE).exists():
        checkpoint = folder
    elif found := checkpoints(folder):
        checkpoint = found[-1]
    else:
        raise ValueError(f"{folder}: no checkpoint")
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint / "actor", dtype="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint / "actor")
    return RouterActor(model.to(device), load_head(checkpoint, device)).eval(), tokenizer


@dataclass(frozen=True)
class RoutedPrompt:
    """A prompt with its route.

    Attributes:
        route: The route.
        probabilities: The probabilities of all routes; the sum is 1.
        messages: The prompt, rewritten for the route.
    """

    route: Route
    probabilities: Mapping[Route, float]
    messages: list[Message]


def route_prompt(
    messages: Iterable[Mapping[str, Any]],
    actor: RouterActor,
    tokenizer: Any,
    *,
    families: Mapping[str, Family] | None = None,
    sample: bool = False,
    generator: torch.Generator | None = None,
    max_prompt_length: int | None = None,
    truncation: Truncation = "error",
    template: TemplateOptions | None = None,
    texts: RouteTexts | None = None,
) -> RoutedPrompt:
    """Return the route of a prompt, and the prompt rewritten for it.

    The actor then generates one answer from `messages`. Nothing else is needed: no reference
    policy, critic or reward.

    Args:
        messages: The prompt.
        actor: The actor with its head, in the mode `eval()`.
        tokenizer: Its tokenizer, with a chat template.
        families: Families of tools by name, where known.
        sample: Whether to sample the route; otherwise it is the most probable one. A budget that
            was met in training with sampled routes is met with sampled routes.
        generator: Source of randomness, on the device of the logits.
        max_prompt_length: As in training; None: no limit.
        truncation: As in training, for a prompt that is longer.
        template: Arguments of `apply_chat_template`, as in training.
        texts: The texts of the routes, as in training; None: those of `TEXTS_VERSION`.

    Raises:
        ValueError: The prompt is too long, and `truncation` is "error".
    """
    prompt = [dict(message) for message in messages]
    fields = encode_prompts(
        [prompt], tokenizer, max_prompt_length, truncation=truncation, template=template
    )
    device = actor.head.linear.weight.device
    with torch.no_grad():
        chosen = actor.route(
            fields["input_ids"].to(device),
            fields["attention_mask"].to(device),
            sample=sample,
            generator=generator,
        )
    route = route_of(int(chosen.action))
    shares = torch.softmax(chosen.logits[0], dim=-1).tolist()
    return RoutedPrompt(
        route,
        dict(zip(ROUTES, shares, strict=True)),
        rewrite_prompt(prompt, route, families, texts=texts),
    )
