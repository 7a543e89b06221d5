"""`rewardfleet-router label`: families of tools, then labels of rows, then files.

A tool gets its family from a file, else from a model, else by patterns. A row gets the route that
fits the tools which its ground truth calls, or the label that the model gives it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import openai

from rewardfleet.tls import tls_context
from rewardfleet.tool_use import family_by_patterns
from rewardfleet.tool_use.usage import read_families
from rewardfleet.wire.tools import Family, ToolsOptions
from rewardfleet.wire.validation import validate
from rewardfleet_router.routes import Route

from .dataset import Dataset, RowToLabel, Tool, read_datasets, write_labels
from .model import TARGET_ACTION, TOOL_FAMILY, LabelModel
from .report import Disagreement, Output, Report, agreement, agreements
from .row_labels import MIXED, TARGETS, RowLabels

_TARGET_OF_FAMILY: dict[Family, str] = {"search": Route.SEARCH, "calculate": Route.CALCULATE}
#: What the words of the model mean.
_FAMILY_OF_WORD: dict[str, Family] = {
    "SEARCH": "search",
    "CALCULATE": "calculate",
    "OTHER": "other",
}
_TARGET_OF_WORD = dict(zip(TARGET_ACTION.labels, TARGETS, strict=True))
#: Characters of a description that the model sees.
_MAX_DESCRIPTION = 2_000
#: The answers of the model, in the folder of the first output.
_CACHE_FILE = "router_labels.sqlite"
#: What the report calls the model's labels of rows.
_BY_ROW = "model's rows"
#: Seconds for one request, and how often it is repeated.
_TIMEOUT_SECONDS, _RETRIES = 300.0, 5


@dataclass(frozen=True)
class LabelOptions:
    """What to label, and how: the options of the command.

    Attributes:
        datasets: Parquet files, and folders with such files.
        tool_families: File with families of tools by name.
        family_patterns: File with patterns by family.
        model_url: Base URL of the endpoint of a model that labels, or None.
        model: Its name there.
        api_key: The endpoint's key, or None.
        model_rows: Whether it labels each row as well as each tool.
        concurrency: Requests at the same time.
        max_tokens: The most tokens of an answer.
        cache_file: SQLite file with its answers; None: in the folder of the outputs.
        output_dir: Folder of the outputs; None: that of each dataset.
        sidecar: Write the labels alone, in this format; None: a copy of the dataset.
        test_share: Share of the rows of a single file that go to `test_router.parquet`.

    Raises:
        ValueError: Options do not go together.
    """

    datasets: Sequence[Path]
    tool_families: Path | None = None
    family_patterns: Path | None = None
    model_url: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model_rows: bool = False
    concurrency: int = 16
    max_tokens: int = 512
    cache_file: Path | None = None
    output_dir: Path | None = None
    sidecar: Literal["jsonl", "csv"] | None = None
    test_share: float | None = None

    def __post_init__(self) -> None:
        url = self.model_url
        if (url is None) != (self.model is None):
            raise ValueError("give --model-url and --model together")
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"--model-url {url}: give a URL, e.g. http://127.0.0.1:8000/v1")
        if url is None and (self.model_rows or self.cache_file is not None):
            raise ValueError("--model-rows and --cache-file need --model-url and --model")


def run_label(options: LabelOptions) -> Report:
    """Label datasets and write the outputs.

    Raises:
        ValueError: A file is missing or has another form.
        BackendFailed: The model's endpoint refused a request, or failed several times.
    """
    # Errors in the files are reported before the first request to the model.
    named = {} if options.tool_families is None else read_families(options.tool_families)
    patterns = _read_patterns(options.family_patterns)
    datasets = read_datasets(
        options.datasets, options.output_dir, options.sidecar, with_questions=options.model_rows
    )
    if options.test_share is not None and len(datasets) > 1:
        raise ValueError("--test-share: give a single file; several are split already")
    for dataset in datasets:
        dataset.output.parent.mkdir(parents=True, exist_ok=True)

    report = Report()
    rows = [row for dataset in datasets for row in dataset.rows]
    tools = Counter(tool for row in rows for tool in row.tools)
    by_method: dict[str, Mapping[Tool, Family]] = {}
    if named:
        by_method["file"] = {tool: named[tool.name] for tool in tools if tool.name in named}
    targets: Mapping[str, str] = {}
    if options.model_url is not None:
        cache_file = options.cache_file or datasets[0].output.parent / _CACHE_FILE
        asking = _ask_model(options, cache_file, list(tools), rows, report)
        by_method["model"], targets = asyncio.run(asking)
    by_method["patterns"] = {
        tool: family_by_patterns(tool.name, tool.description, patterns) for tool in tools
    }
    families: dict[Tool, Family] = {}
    for labels in reversed(by_method.values()):  # the first method wins
        families |= labels

    _compare_families(report, by_method, families, tools)
    _compare_targets(report, by_method, targets, rows)
    for dataset in datasets:
        labels_of_rows = [_labels_of(row, families, targets) for row in dataset.rows]
        report.outputs += _write(dataset, labels_of_rows, options.test_share)
    return report


async def _ask_model(
    options: LabelOptions,
    cache_file: Path,
    tools: Sequence[Tool],
    rows: Sequence[RowToLabel],
    report: Report,
) -> tuple[dict[Tool, Family], dict[str, str]]:
    """Return the model's families of tools, and its labels of rows by their question."""
    texts = {tool: _text_of(tool) for tool in tools}
    well_formed = [row for row in rows if row.called is not None] if options.model_rows else []
    questions = list(dict.fromkeys(row.question for row in well_formed))
    client = openai.AsyncOpenAI(
        base_url=options.model_url,
        api_key=options.api_key or "EMPTY",  # for an endpoint that has none
        timeout=_TIMEOUT_SECONDS,
        max_retries=_RETRIES,
        http_client=openai.DefaultAsyncHttpxClient(verify=tls_context(), trust_env=False),
    )
    async with client:
        model = LabelModel(
            client,
            str(options.model),
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            cache_file=cache_file,
        )
        with model:
            words = await model.label(TOOL_FAMILY, list(dict.fromkeys(texts.values())))
            row_words = await model.label(TARGET_ACTION, questions)
    families = {tool: _FAMILY_OF_WORD[words[text]] for tool, text in texts.items() if text in words}
    targets = {question: _TARGET_OF_WORD[word] for question, word in row_words.items()}
    report.unanswered = {
        "tools": len(tools) - len(families),
        "rows": len(questions) - len(targets),
    }
    return families, targets


def _compare_families(
    report: Report,
    by_method: Mapping[str, Mapping[Tool, Family]],
    result: Mapping[Tool, Family],
    tools: Counter[Tool],
) -> None:
    """Report the families of tools by each method, and where they differ."""
    report.families = {
        method: dict(Counter(labels.values())) for method, labels in by_method.items()
    }
    if len(by_method) > 1:
        report.families["result"] = dict(Counter(result.values()))
    report.tools = agreements(by_method)
    for tool, rows in tools.most_common():
        labels = {name: each[tool] for name, each in by_method.items() if tool in each}
        if len(set(labels.values())) > 1:
            report.disagreements.append(Disagreement(*tool, rows, labels))


def _compare_targets(
    report: Report,
    by_method: Mapping[str, Mapping[Tool, Family]],
    targets: Mapping[str, str],
    rows: Sequence[RowToLabel],
) -> None:
    """Report how far methods agree on rows that they label completely."""
    derived = {
        method: {
            number: _target_of(row.called, families)
            for number, row in enumerate(rows)
            if row.called is not None and all(tool in families for tool in row.called)
        }
        for method, families in by_method.items()
    }
    # Rows that call no tool have the same label by all families.
    calling = {
        method: {number: label for number, label in labels.items() if rows[number].called}
        for method, labels in derived.items()
    }
    report.targets = agreements(calling)
    by_row = {
        number: targets[row.question]
        for number, row in enumerate(rows)
        if row.called is not None and row.question in targets
    }
    if by_row:
        labels = {_BY_ROW: by_row, **derived}
        report.targets += [agreement(labels, _BY_ROW, method) for method in derived]


def _write(dataset: Dataset, labels: Sequence[RowLabels], test_share: float | None) -> list[Output]:
    """Write the labels of a dataset, to one file or to two; return what was written."""
    outputs = []
    for path, chosen in dataset.parts(test_share).items():
        write_labels(path, dataset, chosen, [labels[at] for at in chosen])
        counts = Counter(labels[at].target for at in chosen)
        outputs.append(
            Output(
                path=str(path),
                rows=len(chosen),
                targets={target: counts[target] for target in TARGETS},
                malformed=sum(dataset.rows[at].called is None for at in chosen),
            )
        )
    return outputs


def _text_of(tool: Tool) -> str:
    """Return what the model sees of a tool."""
    return f"Name: {tool.name}\nDescription: {tool.description[:_MAX_DESCRIPTION]}"


def _target_of(called: Sequence[Tool] | None, families: Mapping[Tool, Family]) -> str:
    """Return the label of a row by the families of the tools that its ground truth calls.

    It is `MIXED` if the ground truth is malformed (None).
    """
    if called is None:
        return MIXED
    if not called:
        return Route.ANSWER
    used = {families[tool] for tool in called}
    return _TARGET_OF_FAMILY.get(used.pop(), MIXED) if len(used) == 1 else MIXED


def _labels_of(
    row: RowToLabel, families: Mapping[Tool, Family], targets: Mapping[str, str]
) -> RowLabels:
    by_model = None if row.called is None else targets.get(row.question)
    of_row: dict[str, Family] = {}
    for tool in row.tools:  # if a prompt lists two tools with the same name, the first counts
        of_row.setdefault(tool.name, families[tool])
    return RowLabels(by_model or _target_of(row.called, families), of_row)


def _read_patterns(path: Path | None) -> ToolsOptions:
    """Return the options with the patterns of a JSON file; None: the built-in patterns.

    Raises:
        InvalidRequest: The file has another form.
        ValueError: It is not JSON.
    """
    if path is None:
        return ToolsOptions()
    try:
        patterns = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--family-patterns {path}: {error}") from None
    return validate(ToolsOptions, {"family_patterns": patterns}, prefix=f"{path}: ")
