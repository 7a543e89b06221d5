"""The command `python -m rewardfleet.adapters.router`: `train` and `route`."""

import json
import logging
from pathlib import Path
from typing import TextIO

import click

from rewardfleet.wire.errors import RewardFleetError


@click.group()
def main() -> None:
    """Train and use a router: a head on an actor that chooses between answering and tools."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("overrides", nargs=-1)
@click.option("--list-keys", is_flag=True, help="Print all keys and their defaults.")
def train(overrides: tuple[str, ...], list_keys: bool) -> None:
    """Train a router. OVERRIDES are `key=value`, with verl's keys and those of `router`.

    It continues from the newest checkpoint in trainer.default_local_dir.
    """
    from .config import describe_keys, parse_arguments  # noqa: PLC0415 - without torch

    if list_keys:
        click.echo("\n".join(describe_keys()))
        return
    try:
        config = parse_arguments(overrides)
        from transformers.utils import logging as transformers_logging  # noqa: PLC0415 - see below

        from .train import RouterTrainer  # noqa: PLC0415 - after errors in the arguments

        transformers_logging.disable_progress_bar()  # those of weights break that of the steps
        trainer = RouterTrainer(config)
    except (RewardFleetError, ValueError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    try:
        metrics = trainer.fit()
    except RewardFleetError as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from None
    finally:
        trainer.close()
    shown = {name: value for name, value in metrics.items() if not name.startswith("perf/")}
    click.echo(json.dumps({"step": trainer.step, "folder": str(config.folder), **shown}))


@main.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("prompts", type=click.File(encoding="utf-8"), default="-")
@click.option("--sample/--no-sample", default=False, help="Sample the route. Default: argmax.")
@click.option("--seed", type=int, default=0, help="Seed of sampling.")
def route(checkpoint: Path, prompts: TextIO, sample: bool, seed: int) -> None:
    """Choose the route of prompts, and rewrite them for it.

    CHECKPOINT is a folder `global_step_…`, or a run's, whose newest one is used. PROMPTS has one
    chat per line, as JSON: a list of messages, or an object with `prompt`. The output has one JSON
    object per line: `route`, `probabilities`, `prompt`.
    """
    import torch  # noqa: PLC0415 - `train --list-keys` works without

    from .inference import load_actor, route_prompt  # noqa: PLC0415

    try:
        actor, tokenizer = load_actor(checkpoint)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    generator = torch.Generator()
    generator.manual_seed(seed)
    for number, line in enumerate(prompts, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            messages = value["prompt"] if isinstance(value, dict) else value
        except (KeyError, ValueError) as error:
            raise click.ClickException(f"line {number}: no chat as JSON: {error!r}") from None
        routed = route_prompt(messages, actor, tokenizer, sample=sample, generator=generator)
        shares = {each.value: share for each, share in routed.probabilities.items()}
        answer = {
            "route": routed.route.value,
            "probabilities": shares,
            "prompt": routed.messages,
        }
        click.echo(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
