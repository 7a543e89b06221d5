"""Reading score logs, and the outputs of `rewardfleet score`, as one table, by DuckDB."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardfleet.wire.causes import SUCCESS_THRESHOLD
from rewardfleet.wire.optional_imports import require

from .record import COLUMNS, ITEM_COLUMNS, MAX_RECORD_BYTES
from .segments import LINES, TABLE, segments

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
#: What follows from a record: as `wire.score.reward_of` and `wire.causes.success_threshold`.
_DERIVED = f"""
CASE WHEN service = 'episode' AND score IS NOT NULL THEN
    coalesce(TRY_CAST(details->>'$.details.reward' AS DOUBLE), score) ELSE score END AS reward,
coalesce(TRY_CAST(metadata->>'$.success' AS BOOLEAN) <> (score >= coalesce(
    TRY_CAST(provenance->>'$.calibration.threshold' AS DOUBLE), {SUCCESS_THRESHOLD}
)), false) AS label_differs
"""
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

    The view also has `ITEM_COLUMNS`, of outputs of `rewardfleet score`, `source`, the file, and
    `reward`, the score before any normalization, and `label_differs`, whether `success` in the
    metadata is not what the score says. Records are in no order.

    Args:
        folders: Score logs, and outputs of `rewardfleet score`.
        database: Where tables that the block makes stay. None: in none.

    Raises:
        ValueError: A folder is none of these, or DuckDB is not installed.
    """
    parts = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder")
        parts += _of_output(folder) if (folder / "input.json").exists() else _of_log(folder)
    queries = [f"SELECT * EXCLUDE (filename), filename AS source FROM ({each})" for each in parts]
    records = " UNION ALL BY NAME ".join([_EMPTY, *queries])
    with connect() if database is None else database.cursor() as connection:
        connection.execute(
            f"CREATE OR REPLACE VIEW scores AS SELECT *, {_DERIVED} FROM ({records})"
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
        parts = {"service = ?": self.service, "run = ?": self.run, "starts_with(id, ?)": self.id}
        given = {part: value for part, value in parts.items() if value is not None}
        # A comment at the end of the condition ends there.
        where = [] if self.where is None else [f"({self.where}\n)"]
        return " AND ".join([*given, *where]) or "true", [*given.values()]


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
    sql = f"SELECT * FROM scores WHERE {condition} ORDER BY {order}"
    return dicts_of(connection, sql if limit is None else f"{sql} LIMIT {limit}", values)


def dicts_of(
    connection: "duckdb.DuckDBPyConnection", sql: str, values: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a query as mappings; see `query`."""
    rows = query(connection, sql, values)
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


def _of_log(folder: Path) -> list[str]:
    found = segments(folder)
    if not found and any(folder.glob("[!.]*")):
        raise ValueError(f"{folder}: no score log, and no output of `rewardfleet score`")
    return _tables(found, COLUMNS)


def _of_output(folder: Path) -> list[str]:
    tables = _tables(sorted(folder.glob("part-*.*")), ITEM_COLUMNS)
    for journal in _tables([*folder.glob("journal.jsonl")], ITEM_COLUMNS):  # whose rows are newer
        tables = [f"FROM ({each}) ANTI JOIN ({journal}) USING (row)" for each in tables]
        tables.append(journal)
    return tables


def _tables(paths: Sequence[Path], columns: Mapping[str, str]) -> list[str]:
    """Return queries for files of JSON lines and for Parquet files: the columns and `filename`."""
    types = {name: _TYPES[kind] for name, kind in columns.items()}
    lines = [path for path in paths if path.suffix == LINES]
    parts = [path for path in paths if path.suffix == TABLE]
    queries = []
    if parts:  # older ones lack columns
        read = f"read_parquet({_names(parts)}, union_by_name = true, filename = true)"
        queries.append(f"{_empty(types)} UNION ALL BY NAME FROM {read}")
    if lines:
        # A damaged strip costs its pictures, and not the log.
        decoded = "REPLACE (try(from_base64(frames)) AS frames)" if "frames" in types else ""
        texts = {name: kind.replace("BLOB", "VARCHAR") for name, kind in types.items()}
        # The last line may be incomplete, as it is being written or its process was killed.
        queries.append(
            f"SELECT * {decoded} FROM read_json({_names(lines)}, format = 'newline_delimited', "
            f"columns = {texts}, filename = true, ignore_errors = true, "
            f"maximum_object_size = {_MAX_LINE}) WHERE id IS NOT NULL"
        )
    return queries


def _names(paths: Sequence[Path]) -> str:
    """Return paths as a list in SQL. A `*` in a folder's name is no pattern."""
    quoted = (str(path).replace("'", "''") for path in paths)
    return "[" + ", ".join(f"'{each}'" for each in quoted) + "]"


def _empty(types: Mapping[str, str]) -> str:
    nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in types.items())
    return f"SELECT {nulls} WHERE false"


_ALL = COLUMNS | ITEM_COLUMNS | {"source": "string"}
_EMPTY = _empty({name: _TYPES[kind] for name, kind in _ALL.items()})
