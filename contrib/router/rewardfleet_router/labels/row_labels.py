"""Weak labels of rows, made offline: families of tools, and the route that fits.

They are two columns of a dataset, or a sidecar file with one row per `extra_info.index`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from rewardfleet.bulk.rows import read_rows
from rewardfleet.wire.tools import Family
from rewardfleet_router.routes import ROUTES, Route

#: Column with the label of a row: a route, or `MIXED`.
TARGET_COLUMN = "router_target_action"
#: Column with the families of the row's tools: a mapping, or its JSON as text.
FAMILIES_COLUMN = "tool_families"
#: Both, as the dataset of the router's authors names them. It has `OTHER` for rows whose tools are
#: of no family, and families in capital letters. Our columns come before these.
PUBLISHED_TARGET_COLUMN = "router_target_action_gt"
PUBLISHED_FAMILIES_COLUMN = "router_tool_family_gt"
#: All columns with labels.
LABEL_COLUMNS = (
    *(TARGET_COLUMN, FAMILIES_COLUMN),
    *(PUBLISHED_TARGET_COLUMN, PUBLISHED_FAMILIES_COLUMN),
)
#: Column of a sidecar with the row's `extra_info.index`.
INDEX_COLUMN = "index"
#: The label of rows that no single route fits. They are not trained on.
MIXED = "MIXED"
#: All labels.
TARGETS = (*(route.value for route in ROUTES), MIXED)
_PUBLISHED_MIXED = "OTHER"
#: The action of rows without a label.
NO_LABEL = -1

_FAMILY_NAMES = get_args(Family)


@dataclass(frozen=True)
class RowLabels:
    """The labels of a row.

    Attributes:
        target: One of `TARGETS`, or None if the row is not labeled.
        families: Families of its tools by name.
    """

    target: str | None = None
    families: Mapping[str, Family] = field(default_factory=dict)

    @property
    def action(self) -> int:
        """The index of the labeled route, or `NO_LABEL` for `MIXED` and rows without a label."""
        if self.target is None or self.target == MIXED:
            return NO_LABEL
        return ROUTES.index(Route(self.target))


def parse_labels(fields: Mapping[str, Any]) -> RowLabels:
    """Return the labels of a row of a dataset or of a sidecar. Columns may be missing or empty.

    Args:
        fields: The row; see `LABEL_COLUMNS`.

    Raises:
        ValueError: The label, or a family, is unknown or malformed.
    """
    target, column = fields.get(TARGET_COLUMN), TARGET_COLUMN
    if not target:
        target, column = fields.get(PUBLISHED_TARGET_COLUMN), PUBLISHED_TARGET_COLUMN
        target = MIXED if target == _PUBLISHED_MIXED else target or None
    if target is not None and target not in TARGETS:
        raise ValueError(f"{column}: unknown {target!r}; known: {', '.join(TARGETS)}")
    families, column = _families(fields, FAMILIES_COLUMN), FAMILIES_COLUMN
    if not families:
        published, column = _families(fields, PUBLISHED_FAMILIES_COLUMN), PUBLISHED_FAMILIES_COLUMN
        families = {tool: str(family).lower() for tool, family in published.items()}
    for tool, family in families.items():
        if family not in _FAMILY_NAMES:
            known = ", ".join(_FAMILY_NAMES)
            raise ValueError(f"{column}: unknown {family!r} of {tool!r}; known: {known}")
    return RowLabels(target, families)


def _families(fields: Mapping[str, Any], column: str) -> dict[str, Any]:
    families = fields.get(column) or {}
    if isinstance(families, str):
        try:
            families = json.loads(families)
        except ValueError as error:
            raise ValueError(f"{column}: not JSON: {error}") from None
    if not isinstance(families, Mapping):
        text = f"{column}: a mapping of tools to families (got {families!r})"
        raise ValueError(text)  # noqa: TRY004 - as for other contents of a file
    # Parquet turns mappings with different keys into one structure, with null for missing keys.
    return {tool: family for tool, family in families.items() if family is not None}


def read_sidecar(path: str | Path) -> dict[str, RowLabels]:
    """Return the labels of a sidecar, by `extra_info.index` as text.

    Args:
        path: See `rows_of`; with the columns `index`, `router_target_action` and `tool_families`
            (JSON as text in CSV).

    Raises:
        ValueError: A row is malformed, or two rows have the same index.
    """
    labels: dict[str, RowLabels] = {}
    for number, row in enumerate(rows_of(Path(path)), 1):
        if not isinstance(row, Mapping):
            text = f"{path}, row {number}: a mapping is needed (got {row!r})"
            raise ValueError(text)  # noqa: TRY004 - likewise
        if INDEX_COLUMN not in row or str(row[INDEX_COLUMN]) in labels:
            raise ValueError(f"{path}, row {number}: {INDEX_COLUMN} is missing or not unique")
        try:
            labels[str(row[INDEX_COLUMN])] = parse_labels(row)
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from None
    return labels


def labels_of(row: Mapping[str, Any], sidecar: Mapping[str, RowLabels] | None = None) -> RowLabels:
    """Return the labels of a row of a dataset: of the sidecar if it has the row, else its columns.

    Args:
        row: The row, with `extra_info.index` if there is a sidecar.
        sidecar: What `read_sidecar` returned.
    """
    if sidecar:
        index = (row.get("extra_info") or {}).get("index", row.get("index"))
        if (labels := sidecar.get(str(index))) is not None:
            return labels
    return parse_labels(row)


def rows_of(path: Path) -> Iterator[Any]:
    """Yield the rows of a JSON file (a list), or of a table that `rewardfleet score` reads.

    Raises:
        ValueError: It is none, or a row cannot be read.
        OSError: It cannot be read.
    """
    if path.suffix == ".json":
        try:
            yield from json.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
    else:
        yield from (row.fields for row in read_rows(path))
