"""Datasets in ToolRL's format as Parquet files: reading rows, writing their labels."""

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from rewardfleet.tool_use import parse_ground_truth
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_router.tools_block import find_tools_block

from .row_labels import FAMILIES_COLUMN, INDEX_COLUMN, TARGET_COLUMN, RowLabels

#: The columns of a row that are read.
_PROMPT, _REWARD_MODEL, _EXTRA_INFO = "prompt", "reward_model", "extra_info"
#: Outputs of this command, which are not its inputs.
_OUTPUT_SUFFIX = "_router"
#: Characters of a conversation and a ground truth that a model sees.
_MAX_CONVERSATION, _MAX_GROUND_TRUTH = 8_000, 4_000
#: Rows read at a time.
_BATCH = 1_000


class Tool(NamedTuple):
    """A tool. Datasets have different tools with the same name.

    Attributes:
        name: As it is called.
        description: What it does; empty if the prompt does not say so.
    """

    name: str
    description: str


@dataclass(frozen=True)
class RowToLabel:
    """What labels of a row depend on.

    Attributes:
        index: `extra_info.index`, or None.
        tools: The tools that the prompt lists, and those that the ground truth calls.
        called: Those that the ground truth calls; None if it is malformed.
        question: The conversation and the ground truth, for a model.
    """

    index: int | str | None
    tools: tuple[Tool, ...]
    called: tuple[Tool, ...] | None
    question: str


@dataclass(frozen=True)
class Dataset:
    """A file, and what its labels are written to.

    Attributes:
        path: The file.
        output: Where its labels go.
        table: The `pyarrow.Table` of the file.
        rows: Its rows.
    """

    path: Path
    output: Path
    table: Any
    rows: list[RowToLabel]

    def parts(self, test_share: float | None) -> dict[Path, list[int]]:
        """Return positions of rows by output: all of them, or those for training and for testing.

        Args:
            test_share: Share of the rows that are for testing; None: the dataset is not split.
        """
        if test_share is None:
            return {self.output: list(range(len(self.rows)))}
        is_test = [is_test_row(at, row, test_share) for at, row in enumerate(self.rows)]
        return {
            self.output.with_name(self.output.name.replace(self.path.stem, name, 1)): [
                at for at in range(len(self.rows)) if is_test[at] == (name == "test")
            ]
            for name in ("train", "test")
        }


def read_datasets(
    paths: Iterable[Path], output_dir: Path | None, sidecar: str | None, *, with_questions: bool
) -> list[Dataset]:
    """Read Parquet files and those in folders.

    Args:
        paths: The files and folders.
        output_dir: Folder of the outputs; None: that of each dataset.
        sidecar: Format of sidecars, if these are the outputs; each row needs an index then.
        with_questions: Whether `question` of the rows is needed; else it is empty.

    Raises:
        ValueError: A file is missing or has another form, or two have the same output.
    """
    files = find_files(paths)
    outputs = [output_of(path, output_dir, sidecar) for path in files]
    if len(set(outputs)) < len(outputs):
        raise ValueError("two datasets have the same output; label them one by one")
    datasets = []
    for path, output in zip(files, outputs, strict=True):
        table = read_table(path)
        rows = read_rows(path, table, with_questions=with_questions)
        if sidecar is not None:
            check_indices(path, rows)
        datasets.append(Dataset(path, output, table, rows))
    return datasets


def find_files(datasets: Iterable[Path]) -> list[Path]:
    """Return Parquet files and those in folders, without outputs of this command.

    Raises:
        ValueError: A folder has none, or a file does not exist.
    """
    found: list[Path] = []
    for path in datasets:
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        files = [f for f in files if f == path or not f.stem.endswith(_OUTPUT_SUFFIX)]
        if not files or not all(file.is_file() for file in files):
            raise ValueError(f"{path}: no such Parquet file, or no Parquet file in this folder")
        found += files
    return found


def read_table(path: Path) -> Any:
    """Return the `pyarrow.Table` of a file.

    Raises:
        ValueError: It is not a Parquet file, or lacks columns.
    """
    try:
        table = parquet.read_table(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path}: {error}") from None
    for column in (_PROMPT, _REWARD_MODEL):
        if column not in table.column_names:
            names = ", ".join(table.column_names)
            raise ValueError(f"{path}: has no column {column!r}, but {names}")
    return table


def read_rows(path: Path, table: Any, *, with_questions: bool) -> list[RowToLabel]:
    """Return the rows of a table.

    Args:
        path: Its file, for errors.
        table: The table.
        with_questions: Whether `question` is needed; else it is empty.

    Raises:
        ValueError: A row has another form than ToolRL's.
    """
    names = [name for name in (_PROMPT, _REWARD_MODEL, _EXTRA_INFO) if name in table.column_names]
    rows: list[RowToLabel] = []
    for batch in table.select(names).to_batches(max_chunksize=_BATCH):
        for fields in batch.to_pylist():
            try:
                rows.append(_row(fields, with_questions=with_questions))
            except ValueError as error:
                raise ValueError(f"{path}, row {len(rows) + 1}: {error}") from None
    return rows


def _row(fields: Mapping[str, Any], *, with_questions: bool) -> RowToLabel:
    messages = [(message["role"], _text(message["content"])) for message in _messages(fields)]
    reward_model, extra_info = fields[_REWARD_MODEL], fields.get(_EXTRA_INFO)
    ground_truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    if not isinstance(ground_truth, str):
        raise ValueError("reward_model.ground_truth: must be a text")  # noqa: TRY004 - a row
    blocks = filter(None, (find_tools_block(text) for _, text in messages))
    block = next(blocks, None)
    listed: dict[str, Tool] = {}
    for tool in block.tools if block else ():
        listed.setdefault(tool.name, Tool(tool.name, tool.description))
    try:
        names = dict.fromkeys(call.name for call in parse_ground_truth(ground_truth).calls)
        called = tuple(listed.get(name, Tool(name, "")) for name in names)
    except InvalidRequest:
        called = None
    tools = tuple(dict.fromkeys((*listed.values(), *(called or ()))))
    question = _question(messages, ground_truth) if with_questions else ""
    index = extra_info.get("index") if isinstance(extra_info, dict) else None
    return RowToLabel(index, tools, called, question)


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = fields[_PROMPT]
    if not (
        isinstance(messages, list)
        and messages
        and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages)
    ):
        raise ValueError("prompt: must be a list of messages with `role` and `content`")
    return messages


def _text(content: Any) -> str:
    """Return the text of a message, which may be in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _question(messages: Sequence[tuple[str, str]], ground_truth: str) -> str:
    turns = [f"{role}: {text}" for role, text in messages if role not in {"system", "developer"}]
    conversation = "\n\n".join(turns)[-_MAX_CONVERSATION:]
    return (
        f"Conversation:\n{conversation}\n\nCorrect next turn:\n{ground_truth[:_MAX_GROUND_TRUTH]}"
    )


def output_of(path: Path, folder: Path | None, sidecar: str | None) -> Path:
    """Return where the labels of a dataset go: `train_router.parquet` for `train.parquet`."""
    suffix = ".parquet" if sidecar is None else f"_labels.{sidecar}"
    return (folder or path.parent) / f"{path.stem}{_OUTPUT_SUFFIX}{suffix}"


def is_test_row(number: int, row: RowToLabel, share: float) -> bool:
    """Return whether a row belongs to the test set; rows with the same index go together."""
    identity = number if row.index is None else row.index
    digest = hashlib.sha256(str(identity).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def check_indices(path: Path, rows: Iterable[RowToLabel]) -> None:
    """Check that each row has an index of its own, by which a sidecar names it.

    Raises:
        ValueError: One has not.
    """
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        index = str(row.index)
        if row.index is None or index in seen:
            reason = "is missing" if row.index is None else f"{index} is not unique"
            raise ValueError(
                f"{path}, row {number}: extra_info.index {reason}; a sidecar needs one for each row"
            )
        seen.add(index)


def write_labels(
    output: Path, dataset: Dataset, chosen: Sequence[int], labels: Sequence[RowLabels]
) -> None:
    """Write the labels of rows of a dataset: to a copy of it, or alone, by the suffix of the file.

    Args:
        output: The file.
        dataset: The dataset.
        chosen: Positions of the rows to write, in order.
        labels: Their labels.
    """
    with _replacing(output) as path:
        if output.suffix == ".parquet":
            _write_table(path, dataset.table, chosen, labels)
        else:
            write = _write_csv if output.suffix == ".csv" else _write_jsonl
            write(path, [dataset.rows[at].index for at in chosen], labels)


def _write_table(
    path: Path, table: Any, chosen: Sequence[int], labels: Sequence[RowLabels]
) -> None:
    """Write a copy of a table with the columns of the labels; earlier ones are replaced."""
    if len(chosen) < table.num_rows:
        table = table.take(pa.array(chosen, pa.int64()))
    earlier = {TARGET_COLUMN, FAMILIES_COLUMN} & set(table.column_names)
    table = table.drop_columns(sorted(earlier))
    # As text: a structure would have a field for every tool of the dataset in every row.
    columns = {
        TARGET_COLUMN: [each.target for each in labels],
        FAMILIES_COLUMN: [json.dumps(each.families) for each in labels],
    }
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values, pa.string()))
    parquet.write_table(table, path)


def _write_csv(path: Path, indices: Sequence[Any], labels: Sequence[RowLabels]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((INDEX_COLUMN, TARGET_COLUMN, FAMILIES_COLUMN))
        for index, each in zip(indices, labels, strict=True):
            writer.writerow((index, each.target, json.dumps(each.families)))


def _write_jsonl(path: Path, indices: Sequence[Any], labels: Sequence[RowLabels]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for index, each in zip(indices, labels, strict=True):
            fields = {
                INDEX_COLUMN: index,
                TARGET_COLUMN: each.target,
                FAMILIES_COLUMN: each.families,
            }
            file.write(json.dumps(fields) + "\n")


@contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """Yield a file that replaces `output` once it is complete."""
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
