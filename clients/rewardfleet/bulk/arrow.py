"""PyArrow, which reads and writes column stores, and is optional."""

from typing import Any

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
