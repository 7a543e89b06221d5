"""PyArrow, which reads and writes column stores, and is optional."""

from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

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


def json_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what decodes the JSON texts in values of a type; None if it has none.

    JSON is the extension type `arrow.json`: `datasets` and DuckDB have it for objects that differ.
    PyArrow returns it as text.
    """
    if getattr(kind, "extension_name", "") == "arrow.json":
        return lambda value: None if value is None else from_json(value)
    if (one := _item_type(kind)) is not None:
        if (item := json_decoder(one)) is None:
            return None
        if pyarrow().types.is_map(kind):
            return lambda value: value and {key: item(each) for key, each in value.items()}
        return lambda value: value and [item(each) for each in value]
    fields = kind if pyarrow().types.is_struct(kind) else ()
    items = {each.name: decode for each in fields if (decode := json_decoder(each.type))}
    if not items:
        return None
    return lambda value: value and value | {name: items[name](value[name]) for name in items}


def has_structs(kind: Any) -> bool:
    """Return whether values of a type have objects with the keys of all rows."""
    one = _item_type(kind)
    return pyarrow().types.is_struct(kind) or (one is not None and has_structs(one))


def _item_type(kind: Any) -> Any:
    """Return the type of the values of a list or a map; None for another type."""
    types = pyarrow().types
    if types.is_map(kind):
        return kind.item_type
    return (
        kind.value_type
        if types.is_nested(kind) and not types.is_struct(kind) and not types.is_union(kind)
        else None
    )
