"""The command: families of tools, then labels of rows, then files.

A tool gets its family from a file, else from a model, else by patterns. A row gets the route that
fits the tools which its ground truth calls, or the label that the model gives it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text

from rewardfleet.adapters.router.labels import MIXED, TARGETS
from rewardfleet.adapters.router.routes import Route
from rewardfleet.tool_use import family_by_patterns
from rewardfleet.wire.tools import Family, ToolsOptions
from rewardfleet.wire.validation import validate
from rewardfleet_server.system.optional_imports import require
from rewardfleet_server.tools.families import read_families
from rewardfleet_server.video.judges.chat_endpoint import ChatEndpoint

from .dataset import (
    OutputFormat,
    Row,
    RowLabels,
    Tool,
    check_indices,
    find_files,
    is_test_row,
    output_of,
    read_rows,
    read_table,
    write_sidecar,
    write_table,
)
from .model import TARGET_ACTION, TOOL_FAMILY, LabelModel, Task
from .report import Disagreement, Output, Report, agreement, agreements

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
#: Seconds for one request.
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class ModelOptions:
    """A model that labels.

    Attributes:
        url: Base URL of its endpoint.
        name: Its name there.
        api_key: The endpoint's key, or None.
        concurrency: Requests at the same time.
        max_tokens: The most tokens of an answer.
        cache_file: SQLite file with its answers; None: in the folder of the outputs.
        rows: Whether it labels each row as well as each tool.
    """

    url: str
    name: str
    api_key: str | None = None
    concurrency: int = 16
    max_tokens: int = 512
    cache_file: Path | None = None
    rows: bool = False


@dataclass(frozen=True)
class LabelOptions:
    """What to label, and how.

    Attributes:
        datasets: Parquet files, and folders with such files.
        output_dir: Folder of the outputs; None: that of each dataset.
        output_format: A copy of the dataset, or the labels alone.
        test_share: Share of the rows of a single file that go to `test_router.parquet`.
        families: File with families of tools by name.
        patterns: File with patterns by family.
        model: A model that labels, or None.
    """

    datasets: Sequence[Path]
    output_dir: Path | None = None
    output_format: OutputFormat = "parquet"
    test_share: float | None = None
    families: Path | None = None
    patterns: Path | None = None
    model: ModelOptions | None = None


def run_label(options: LabelOptions) -> Report:
    """Label datasets and write the outputs.

    Raises:
        ValueError: A file is missing or has another form, or a package is not installed.
        BackendFailed: The model's endpoint refused a request.
        Unavailable: The model's endpoint failed several times.
    """
    require("router", "rewardfleet tools label", "pyarrow")
    return asyncio.run(_Labeling(options).run())


class _Labeling:
    def __init__(self, options: LabelOptions) -> None:
        self._options = options
        self._files = find_files(options.datasets)
        self._outputs = [
            output_of(path, options.output_dir, options.output_format) for path in self._files
        ]
        if len(set(self._outputs)) < len(self._outputs):
            raise ValueError("two datasets have the same output; label them one by one")
        if options.test_share is not None and len(self._files) > 1:
            raise ValueError("--test-share: give a single file; several are split already")
        # Errors in the files are reported before the first request to the model.
        self._families = {} if options.families is None else read_families(options.families)
        self._patterns = ToolsOptions() if options.patterns is None else _patterns(options.patterns)
        self._tables = [read_table(path) for path in self._files]
        with_questions = options.model is not None and options.model.rows
        self._rows = [
            read_rows(path, table, with_questions=with_questions)
            for path, table in zip(self._files, self._tables, strict=True)
        ]
        if options.output_format != "parquet":
            for path, rows in zip(self._files, self._rows, strict=True):
                check_indices(path, rows)
        for output in self._outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
        self._report = Report()

    async def run(self) -> Report:
        every_row = [row for rows in self._rows for row in rows]
        frequency = Counter(tool for row in every_row for tool in row.tools)
        tools = list(frequency)
        by_method: dict[str, dict[Tool, Family]] = {}
        if self._families:
            by_method["file"] = {
                tool: self._families[tool.name] for tool in tools if tool.name in self._families
            }
        targets: dict[str, str] = {}
        if self._options.model is not None:
            by_method["model"], targets = await self._ask(self._options.model, tools, every_row)
        by_method["patterns"] = {
            tool: family_by_patterns(tool.name, tool.description, self._patterns) for tool in tools
        }
        families: dict[Tool, Family] = {}
        for labels in reversed(by_method.values()):  # the first method wins
            families |= labels
        self._compare(by_method, families, frequency)
        self._compare_targets(by_method, targets, every_row)
        for number, rows in enumerate(self._rows):
            labels_of_rows = [_labels_of(row, families, targets) for row in rows]
            self._write(number, rows, labels_of_rows)
        return self._report

    async def _ask(
        self, options: ModelOptions, tools: Sequence[Tool], rows: Sequence[Row]
    ) -> tuple[dict[Tool, Family], dict[str, str]]:
        """Return the model's families of tools, and its labels of rows by their question."""
        texts = {tool: _text_of(tool) for tool in tools}
        well_formed = [row for row in rows if row.called is not None] if options.rows else []
        questions = list(dict.fromkeys(row.question for row in well_formed))
        model = LabelModel(
            ChatEndpoint(
                url=options.url,
                model=options.name,
                api_key=options.api_key,
                concurrency=options.concurrency,
                timeout_s=_TIMEOUT_SECONDS,
            ),
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            cache_file=options.cache_file or self._outputs[0].parent / _CACHE_FILE,
        )
        try:
            words = await _label(model, TOOL_FAMILY, list(dict.fromkeys(texts.values())), "tools")
            row_words = await _label(model, TARGET_ACTION, questions, "rows")
        finally:
            await model.aclose()
        families = {t: _FAMILY_OF_WORD[words[text]] for t, text in texts.items() if text in words}
        targets = {question: _TARGET_OF_WORD[word] for question, word in row_words.items()}
        self._report.unanswered = {
            "tools": len(tools) - len(families),
            "rows": len(questions) - len(targets),
        }
        return families, targets

    def _compare(
        self,
        by_method: Mapping[str, Mapping[Tool, Family]],
        families: Mapping[Tool, Family],
        frequency: Counter[Tool],
    ) -> None:
        """Report the families of tools by each method, and where they differ."""
        report = self._report
        report.families = {
            method: dict(Counter(labels.values()))
            for method, labels in [*by_method.items(), ("result", families)]
            if method != "result" or len(by_method) > 1
        }
        report.tools = agreements(by_method)
        for tool, rows in frequency.most_common():
            labels = {name: each[tool] for name, each in by_method.items() if tool in each}
            if len(set(labels.values())) > 1:
                report.disagreements.append(Disagreement(*tool, rows, labels))

    def _compare_targets(
        self,
        by_method: Mapping[str, Mapping[Tool, Family]],
        targets: Mapping[str, str],
        rows: Sequence[Row],
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
        self._report.targets = agreements(calling)
        by_row = {
            number: targets[row.question]
            for number, row in enumerate(rows)
            if row.called is not None and row.question in targets
        }
        if by_row:
            labels = {_BY_ROW: by_row, **derived}
            self._report.targets += [agreement(labels, _BY_ROW, method) for method in derived]

    def _write(self, number: int, rows: Sequence[Row], labels: Sequence[RowLabels]) -> None:
        output = self._outputs[number]
        parts = {output: list(range(len(rows)))}
        if (share := self._options.test_share) is not None:
            is_test = [is_test_row(at, row, share) for at, row in enumerate(rows)]
            parts = {
                output.with_name(output.name.replace(self._files[number].stem, name, 1)): [
                    at for at in range(len(rows)) if is_test[at] == (name == "test")
                ]
                for name in ("train", "test")
            }
        for path, chosen in parts.items():
            chosen_rows, chosen_labels = [rows[at] for at in chosen], [labels[at] for at in chosen]
            if self._options.output_format == "parquet":
                write_table(path, self._tables[number], chosen, chosen_labels)
            else:
                write_sidecar(path, chosen_rows, chosen_labels)
            counts = Counter(each.target for each in chosen_labels)
            self._report.outputs.append(
                Output(
                    path=str(path),
                    rows=len(chosen_rows),
                    targets={target: counts[target] for target in TARGETS},
                    malformed=sum(row.called is None for row in chosen_rows),
                )
            )


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


def _labels_of(row: Row, families: Mapping[Tool, Family], targets: Mapping[str, str]) -> RowLabels:
    by_model = None if row.called is None else targets.get(row.question)
    of_row: dict[str, Family] = {}
    for tool in row.tools:  # if a prompt lists two tools with the same name, the first counts
        of_row.setdefault(tool.name, families[tool])
    return RowLabels(by_model or _target_of(row.called, families), of_row)


def _patterns(path: Path) -> ToolsOptions:
    """Return the options with the patterns of a JSON file.

    Raises:
        InvalidRequest: The file has another form.
        ValueError: It is not JSON.
    """
    try:
        patterns = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--family-patterns {path}: {error}") from None
    return validate(ToolsOptions, {"family_patterns": patterns}, prefix=f"{path}: ")


async def _label(model: LabelModel, task: Task, texts: Sequence[str], what: str) -> dict[str, str]:
    """Label texts, with a progress bar on a terminal."""
    if not texts:
        return {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Throughput(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        bar = progress.add_task(f"Labeling {what}", total=len(texts))
        return await model.label(task, texts, lambda: progress.advance(bar))


class _Throughput(ProgressColumn):
    """Items per second."""

    def render(self, task: ProgressTask) -> Text:
        return Text(
            "" if task.speed is None else f"{task.speed:.1f}/s", style="progress.data.speed"
        )
