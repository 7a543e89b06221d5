"""Reading score logs, and the outputs of `rewardfleet score`, as one table, by DuckDB."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardfleet.bulk.records import columns_of
from rewardfleet.services import SERVICES
from rewardfleet.wire.optional_imports import require

from .record import COLUMNS, MAX_RECORD_BYTES
from .segments import OPEN, reading, segments

if TYPE_CHECKING:
    import duckdb

#: The types of columns in DuckDB. JSON is text, as in Parquet files.
_TYPES = {
    "string": "VARCHAR",
    "json": "VARCHAR",
    "float64": "DOUBLE",
    "int64": "BIGINT",
    "bool": "BOOLEAN",
    "binary": "BLOB",
    "map": "MAP(VARCHAR, DOUBLE)",
}
#: What outputs of `rewardfleet score` have besides, and no detail.
_OF_OUTPUTS = ("row", "place", "completion")
#: Bytes of a line with a record, at most, with what JSON adds.
_MAX_LINE = 2 * MAX_RECORD_BYTES


def connect() -> "duckdb.DuckDBPyConnection":
    """Return a connection to a database in memory, which fetches nothing from the network.

    Raises:
        ValueError: DuckDB is not installed.
    """
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection: duckdb.DuckDBPyConnection = _duckdb().connect(config=config)
    return connection


@contextlib.contextmanager
def open_log(
    folders: Sequence[Path], database: "duckdb.DuckDBPyConnection | None" = None
) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Give the block a connection to DuckDB with the view `scores`: `COLUMNS` of all records.

    The view also has `source`, the file, and of outputs of `rewardfleet score` `row`, `place` and
    `completion`. Records are in no order. No file is replaced meanwhile.

    Args:
        folders: Score logs, and outputs of `rewardfleet score`.
        database: Where tables that the block makes stay. None: in none.

    Raises:
        ValueError: A folder is none of these, or DuckDB is not installed.
    """
    with contextlib.ExitStack() as stack:
        parts = []
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"{folder}: no such folder")
            if (folder / "input.json").exists():
                parts += _of_output(folder)
            else:
                parts += _of_log(folder, stack)
        connection = stack.enter_context(connect() if database is None else database.cursor())
        connection.execute(
            f"CREATE OR REPLACE VIEW scores AS {' UNION ALL BY NAME '.join([_EMPTY, *parts])}"
        )
        yield connection


@dataclass(frozen=True)
class Filters:
    """Which records are read."""

    service: str | None = None
    run: str | None = None
    id: str | None = None  #: how it begins
    where: str | None = None  #: a condition in SQL

    def sql(self) -> tuple[str, list[Any]]:
        """Return a condition in SQL, and the values of its parameters."""
        given = {name: getattr(self, name) for name in ("service", "run")}
        given = {name: value for name, value in given.items() if value is not None}
        parts, values = [f"{name} = ?" for name in given], [*given.values()]
        if self.id is not None:
            parts, values = [*parts, "starts_with(id, ?)"], [*values, self.id]
        if self.where is not None:
            parts.append(f"({self.where}\n)")  # a comment at its end ends there
        return " AND ".join(parts) or "true", values


def select(
    connection: "duckdb.DuckDBPyConnection",
    filters: Filters,
    *,
    order: str = "time",
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Return records as mappings.

    Raises:
        ValueError: The condition of the filters is not SQL, or the data is damaged.
    """
    condition, values = filters.sql()
    rows = query(
        connection,
        f"SELECT * FROM scores WHERE {condition} ORDER BY {order}"
        + ("" if limit is None else f" LIMIT {limit}"),
        values,
    )
    names = [each[0] for each in connection.description or ()]
    return [dict(zip(names, row, strict=True)) for row in rows]


def query(
    connection: "duckdb.DuckDBPyConnection", sql: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Return the rows of a query.

    Raises:
        ValueError: It is not SQL, or the data is damaged.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except _duckdb().Error as error:
        raise ValueError(str(error)) from None


def rows_of(
    connection: "duckdb.DuckDBPyConnection", sql: str, values: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, of which few are in memory. Other queries may run meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        while rows := cursor.fetchmany(100):
            yield from rows


def _duckdb() -> Any:
    require("log", "reading a score log", "duckdb")
    import duckdb  # noqa: PLC0415 - optional

    return duckdb


def _of_log(folder: Path, stack: contextlib.ExitStack) -> list[str]:
    """Return the queries for the segments of a log."""
    if not segments(folder) and not (folder / ".lock").exists():
        raise ValueError(f"{folder}: no score log, and no output of `rewardfleet score`")
    stack.enter_context(reading(folder))
    found = segments(folder)
    lines = [path for path in found if path.suffix == OPEN]
    tables = [path for path in found if path.suffix != OPEN]
    queries = []
    if lines:
        # A damaged strip costs its pictures, and not the log.
        names = ", ".join(
            "try(from_base64(frames)) AS frames" if name == "frames" else f'"{name}"'
            for name in COLUMNS
        )
        types = {name: _TYPES[kind] for name, kind in COLUMNS.items()} | {"frames": "VARCHAR"}
        # The last line may be incomplete, as it is being written or its process was killed.
        queries.append(
            f"SELECT {names}, filename AS source FROM {_json(lines, types)} WHERE id IS NOT NULL"
        )
    if tables:
        queries.append(f"SELECT * EXCLUDE (filename), filename AS source FROM {_parquet(tables)}")
    return queries


def _of_output(folder: Path) -> list[str]:
    """Return the queries for an output of `rewardfleet score`."""
    key = json.loads((folder / "input.json").read_text())
    service = key.get("service")
    if service not in SERVICES:
        raise ValueError(f"{folder}: an output of a service {service!r}, which there is not")
    columns = columns_of(SERVICES[service].client.score_type)
    base = [name for name in columns if name in COLUMNS and name not in {"service", "details"}]
    casts = {True: """'{0}', CAST("{0}" AS JSON)""", False: """'{0}', "{0}\""""}
    details = ", ".join(
        casts[kind == "json"].format(name)
        for name, kind in columns.items()
        if name not in base and name not in _OF_OUTPUTS
    )
    shown = ", ".join(f'"{name}"' for name in [*base, *_OF_OUTPUTS])
    select = (
        f"SELECT {shown}, '{service}' AS service, 1.0 AS sample_rate, filename AS source, "
        f"CAST(json_object({details}) AS VARCHAR) AS details FROM "
    )
    parts = sorted(folder.glob("part-*.parquet"))
    lines = [*sorted(folder.glob("part-*.jsonl")), *folder.glob("journal.jsonl")]
    queries = []
    types = {name: _duck_type(kind) for name, kind in columns.items()}
    if parts:  # older ones lack columns
        queries.append(f"{select}({_empty(types)} UNION ALL BY NAME FROM {_parquet(parts)})")
    if lines:
        queries.append(f"{select}{_json(lines, types)} WHERE id IS NOT NULL")
    return queries


def _duck_type(kind: str) -> str:
    return f"{_duck_type(kind[5:-1])}[]" if kind.startswith("list<") else _TYPES[kind]


def _json(paths: Sequence[Path], types: dict[str, str]) -> str:
    columns = ", ".join(f"\"{name}\": '{kind}'" for name, kind in types.items())
    return (
        f"read_json({_names(paths)}, format = 'newline_delimited', columns = {{{columns}}}, "
        f"filename = true, ignore_errors = true, maximum_object_size = {_MAX_LINE})"
    )


def _parquet(paths: Sequence[Path]) -> str:
    return f"read_parquet({_names(paths)}, union_by_name = true, filename = true)"


def _names(paths: Sequence[Path]) -> str:
    """Return paths as a list in SQL. A `*` in a folder's name is no pattern."""
    quoted = (str(path).replace("'", "''") for path in paths)
    return "[" + ", ".join(f"'{each}'" for each in quoted) + "]"


def _empty(types: Mapping[str, str]) -> str:
    nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in types.items())
    return f"SELECT {nulls} WHERE false"


_EMPTY = _empty(
    {
        **{name: _TYPES[kind] for name, kind in COLUMNS.items()},
        **dict(zip(_OF_OUTPUTS, ("BIGINT", "VARCHAR", "BIGINT"), strict=True)),
        "source": "VARCHAR",
    }
)
