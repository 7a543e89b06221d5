"""`rewardfleet tools`: datasets of tool use."""

from pathlib import Path
from typing import Literal

import click

from rewardfleet.commands.options import AS_JSON, Group
from rewardfleet_server.tools.labeling import command as labeling


@click.group(cls=Group, name="tools", help="Datasets of tool use.")
def command() -> None:
    """Group the commands that change datasets."""


@command.command(
    name="label",
    help="Label datasets for the router: families of tools, and the route that fits each row. "
    "DATASET is a Parquet file in ToolRL's format, or a folder with such files. "
    "train.parquet becomes train_router.parquet.",
)
@click.argument(
    "datasets", nargs=-1, required=True, metavar="DATASET...", type=click.Path(path_type=Path)
)
@click.option(
    "--tool-families",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="JSON or CSV file with families of tools, as that of `serve tools`.",
)
@click.option(
    "--family-patterns",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
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
@AS_JSON
def label(
    datasets: tuple[Path, ...],
    tool_families: Path | None,
    family_patterns: Path | None,
    model_url: str | None,
    model: str | None,
    api_key: str | None,
    model_rows: bool,
    concurrency: int,
    max_tokens: int,
    cache_file: Path | None,
    output_dir: Path | None,
    sidecar: Literal["jsonl", "csv"] | None,
    test_share: float | None,
    as_json: bool,
) -> None:
    """Label datasets and print what was labeled."""
    if (model_url is None) != (model is None):
        raise click.UsageError("give --model-url and --model together")
    if model_url is not None and not model_url.startswith(("http://", "https://")):
        raise click.UsageError(
            f"--model-url {model_url}: give a URL, e.g. http://127.0.0.1:8000/v1"
        )
    if model_url is None and (model_rows or cache_file is not None):
        raise click.UsageError("--model-rows and --cache-file need --model-url and --model")

    endpoint = None
    if model_url is not None and model is not None:
        endpoint = labeling.ModelOptions(
            url=model_url,
            name=model,
            api_key=api_key,
            concurrency=concurrency,
            max_tokens=max_tokens,
            cache_file=cache_file,
            rows=model_rows,
        )
    options = labeling.LabelOptions(
        datasets=datasets,
        output_dir=output_dir,
        output_format=sidecar or "parquet",
        test_share=test_share,
        families=tool_families,
        patterns=family_patterns,
        model=endpoint,
    )
    report = labeling.run_label(options)
    print(report.as_json() if as_json else report.as_text())
