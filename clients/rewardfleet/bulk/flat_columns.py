"""Models as flat columns of tables, whose nested models have columns with a prefix."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_json

from .arrow import pyarrow

if TYPE_CHECKING:
    from pydantic import BaseModel

#: By the type in a JSON Schema.
_TYPES = {"number": "float64", "integer": "int64", "string": "string", "boolean": "bool"}
_Schema = Mapping[str, Any]


def model_columns(model: "type[BaseModel]") -> dict[str, str]:
    """Return the columns of a table of models, and their types.

    The types are `float64`, `int64`, `string`, `bool`, `list<…>` of these, `map` (of text to
    float64), and `json`, a text.
    """
    schema = model.model_json_schema(mode="serialization")
    return dict(_columns(schema, schema.get("$defs", {})))


def _columns(schema: _Schema, models: _Schema) -> Iterator[tuple[str, str]]:
    for name, each in schema["properties"].items():
        match _members(each, models):
            case [{"properties": _} as nested]:
                yield from ((f"{name}_{part}", kind) for part, kind in _columns(nested, models))
            case members:
                yield name, _type_of(members, models)


def _members(schema: _Schema, models: _Schema) -> list[_Schema]:
    """Return the schemas of a union, without null; of anything else its own."""
    if "$ref" in schema:
        schema = models[schema["$ref"].rpartition("/")[2]]
    if "anyOf" not in schema:
        return [] if schema.get("type") == "null" else [schema]
    return [member for part in schema["anyOf"] for member in _members(part, models)]


def _type_of(members: list[_Schema], models: _Schema) -> str:
    kinds = {each.get("type") for each in members}
    if kinds == {"array"}:
        item = _type_of(_members(members[0]["items"], models), models)
        return f"list<{item}>" if item in _TYPES.values() else "json"
    if kinds == {"object"} and isinstance(members[0].get("additionalProperties"), dict):
        value = _type_of(_members(members[0]["additionalProperties"], models), models)
        return "map" if value == "float64" else "json"
    return _TYPES.get(str(kinds.pop()), "json") if len(kinds) == 1 else "json"


def arrow_table(records: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Any:
    """Return records, each with all columns, as a `pyarrow.Table`."""
    pa = pyarrow()

    def arrow_type(kind: str) -> Any:
        if kind == "map":
            return pa.map_(pa.string(), pa.float64())
        if kind.startswith("list<"):
            return pa.list_(arrow_type(kind[5:-1]))
        return pa.type_for_alias("string" if kind == "json" else kind)

    def values(found: Sequence[Any], kind: str) -> Sequence[Any]:
        if kind == "json":
            return [None if each is None else json_text(each) for each in found]
        if kind == "map":
            return [list((each or {}).items()) for each in found]
        return found

    rows = [*map(itemgetter(*columns), records)]
    by_column = zip(*rows, strict=True) if rows else itertools.repeat(())
    arrays = {
        name: pa.array(values(found, kind), arrow_type(kind))
        for (name, kind), found in zip(columns.items(), by_column, strict=False)
    }
    return pa.table(arrays)


def json_text(value: Any) -> str:
    """Return a value as JSON, or what has no form there as a text."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # a lone surrogate, which JSON can have as an escape only
        return json.dumps(value, default=repr)
