"""PyArrow, which reads and writes column stores, and is optional."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from rewardfleet.wire.truth import parsed

_FIRST_VERSION = 21


def pyarrow() -> Any:
    """Import pyarrow, with `pyarrow.parquet`.

    Raises:
        ValueError: It is not installed, or too old for the type `arrow.json` in Parquet.
    """
    try:
        import pyarrow.parquet  # noqa: PLC0415 - optional

        if int(pyarrow.__version__.partition(".")[0]) >= _FIRST_VERSION:
            return pyarrow
    except ModuleNotFoundError:
        pass
    raise ValueError(
        f"Parquet and Arrow files need pyarrow: pip install 'pyarrow>={_FIRST_VERSION}'; or use "
        "JSONL, with --format jsonl"
    )


def with_json(value: Any, kind: Any) -> Any:
    """Return a value of a type with what its JSON texts stand for.

    JSON is the extension type `arrow.json`, which `datasets` and DuckDB have for objects that
    differ. PyArrow returns it as text.
    """
    types = pyarrow().types
    if value is None:
        return None
    if getattr(kind, "extension_name", "") == "arrow.json":
        return parsed(value)
    if types.is_struct(kind):
        return {each.name: with_json(value[each.name], each.type) for each in kind}
    if types.is_map(kind):
        return {key: with_json(each, kind.item_type) for key, each in value.items()}
    if types.is_nested(kind):
        return [with_json(each, kind.value_type) for each in value]
    return value


def arrow_table(records: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Any:
    """Return records as a `pyarrow.Table`.

    Args:
        records: Each has all columns.
        columns: The types by name: `float64`, `int64`, `string`, `bool`, `binary`, `map` (of text
            to float64), or `json`, which becomes a text.
    """
    pa = pyarrow()
    kinds = {"json": pa.string(), "map": pa.map_(pa.string(), pa.float64())}
    schema = [(n, kinds.get(kind) or pa.type_for_alias(kind)) for n, kind in columns.items()]
    texts = [name for name, kind in columns.items() if kind == "json"]
    rows = [
        {**each, **{n: json_text(each[n]) for n in texts if each[n] is not None}}
        for each in records
    ]
    return pa.Table.from_pylist(rows, pa.schema(schema))


def json_text(value: Any) -> str:
    """Return a value as JSON, or what has no form there as a text."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # a lone surrogate, which JSON can have as an escape only
        return json.dumps(value, default=repr)
