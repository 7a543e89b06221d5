"""The command `rewardfleet-router`: `label`, `train` and `route`.

Each imports what it needs, so that labels need no torch, and `--help` is quick.
"""

import json
import logging
from pathlib import Path
from typing import Any, TextIO

import click

from rewardfleet.wire.errors import RewardFleetError

#: An existing file, and a file or folder that may not exist.
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_PATH = click.Path(path_type=Path)


class LabelingFailed(click.ClickException):
    """No dataset was labeled."""

    exit_code = 2


@click.group()
def main() -> None:
    """Train and use a router: a head on an actor that chooses between answering and tools."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")


@main.command()
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...", type=_PATH)
@click.option(
    "--tool-families",
    type=_FILE,
    metavar="FILE",
    help="JSON file with families of tools, as that of `rewardfleet serve tools`.",
)
@click.option(
    "--family-patterns",
    type=_FILE,
    metavar="FILE",
    help='JSON file with patterns by family, e.g. {"search": ["get*"]}; instead of built-in ones.',
)
@click.option(
    "--model-url",
    metavar="URL",
    help="Base URL of an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1. Its model "
    "labels tools; --tool-families comes before it. The endpoint's key is in OPENAI_API_KEY.",
)
@click.option("--model", metavar="NAME", help="Model to request there.")
@click.option("--api-key", envvar="OPENAI_API_KEY", hidden=True)
@click.option(
    "--model-rows",
    is_flag=True,
    help="Ask the model for the label of each row as well. Else it follows from the families of "
    "the tools that the ground truth calls.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests to the model at the same time.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 100_000),
    default=512,
    show_default=True,
    metavar="N",
    help="The most tokens of an answer, thoughts included.",
)
@click.option(
    "--cache-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="SQLite file with the model's answers, from which an interrupted run resumes.  "
    "[default: router_labels.sqlite next to the first output]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of the outputs.  [default: that of each dataset]",
)
@click.option(
    "--sidecar",
    type=click.Choice(["jsonl", "csv"]),
    help="Write the labels alone, by extra_info.index, e.g. train_router_labels.jsonl.",
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Split a single file into train_router and test_router, with this share in the latter.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def label(as_json: bool, **options: Any) -> None:
    """Label datasets: families of tools, and the route that fits each row.

    DATASET is a Parquet file in ToolRL's format, or a folder with such files. train.parquet becomes
    train_router.parquet.
    """
    try:
        from .labels.labeling import LabelOptions, run_label  # noqa: PLC0415 - see above

        report = run_label(LabelOptions(**options))
    except RewardFleetError as error:
        raise LabelingFailed(error.detail) from None
    except (OSError, ValueError, ImportError) as error:
        raise LabelingFailed(str(error)) from None
    click.echo(report.as_json() if as_json else report.as_text())


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
    try:
        import torch  # noqa: PLC0415 - see above

        from .inference import load_actor, route_prompt  # noqa: PLC0415 - see above

        actor, tokenizer = load_actor(checkpoint)
    except (ValueError, OSError, ImportError) as error:
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
    main(prog_name="rewardfleet-router")
