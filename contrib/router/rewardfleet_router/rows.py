"""Rows of datasets: `prompt`, `reward_model.ground_truth`, `extra_info.index`, as verl has them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardfleet.wire.tools import ToolDescription

from .labels.row_labels import RowLabels, labels_of, read_sidecar, rows_of
from .routes import Message
from .tools_block import find_tools_block


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a dataset; equal to itself only, as rows of two datasets may have the same index.

    Attributes:
        index: `extra_info.index` as text; a row's own.
        prompt: The chat.
        ground_truth: A correct answer.
        labels: Families of tools, and the weak label of the route, where known.
        tools: The tools that the prompt lists.
        extra_info: All of it.
    """

    index: str
    prompt: list[Message]
    ground_truth: str
    labels: RowLabels = field(default_factory=RowLabels)
    tools: tuple[ToolDescription, ...] = ()
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def read_rows(paths: Iterable[str | Path], sidecar: str | Path | None = None) -> list[Row]:
    """Read the rows of Parquet (with pyarrow), JSON (a list), JSON Lines, CSV or Arrow files.

    Args:
        paths: The files.
        sidecar: A file with labels, by `extra_info.index`.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has another format, a row lacks a column, or two rows have the same
            index.
    """
    labels = read_sidecar(sidecar) if sidecar is not None else None
    rows: dict[str, Row] = {}
    for path in paths:
        for number, fields in enumerate(rows_of(Path(path)), 1):
            try:
                row = _row(fields, labels_of(fields, labels))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, row {number}: give `prompt`, `reward_model.ground_truth` and "
                    f"`extra_info.index` ({type(error).__name__}: {error})"
                ) from error
            if row.index in rows:
                raise ValueError(
                    f"{path}, row {number}: extra_info.index {row.index} is not unique"
                )
            rows[row.index] = row
    return list(rows.values())


def digest(rows: Iterable[Row]) -> str:
    """Return the SHA-256 of the indices, prompts and ground truths of rows."""
    sha256 = hashlib.sha256()
    for row in rows:
        sha256.update(repr((row.index, row.prompt, row.ground_truth)).encode())
    return sha256.hexdigest()


def _row(fields: Mapping[str, Any], labels: RowLabels) -> Row:
    prompt = [dict(message) for message in fields["prompt"]]
    return Row(
        index=str(fields["extra_info"]["index"]),
        prompt=prompt,
        ground_truth=str(fields["reward_model"]["ground_truth"]),
        labels=labels,
        tools=_tools(prompt),
        extra_info=fields["extra_info"],
    )


def _tools(prompt: Iterable[Message]) -> tuple[ToolDescription, ...]:
    for message in prompt:
        content = message.get("content")
        block = find_tools_block(content) if isinstance(content, str) else None
        if block is not None:
            described = {tool.name: tool.description[:20_000] for tool in block.tools if tool.name}
            return tuple(
                ToolDescription(name=name[:1_000], description=text)
                for name, text in described.items()
            )
    return ()
