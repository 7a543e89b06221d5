"""Models as flat columns of tables, whose nested models have columns with a prefix."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic_core import PydanticSerializationError, to_json

from .arrow import pyarrow

if TYPE_CHECKING:
    from pydantic import BaseModel

_TYPES = {float: "float64", int: "int64", str: "string", bool: "bool"}


def model_columns(model: "type[BaseModel]") -> dict[str, str]:
    """Return the columns of a table of models, and their types.

    The types are `float64`, `int64`, `string`, `bool`, `list<…>` of these, `map` (of text to
    float64), and `json`, a text.
    """
    return dict(_columns(model))


def _columns(model: "type[BaseModel]") -> Iterator[tuple[str, str]]:
    from pydantic import BaseModel  # noqa: PLC0415 - what writes tables needs none

    for name, each in model.model_fields.items():
        plain = _plain(each.annotation)
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            yield from ((f"{name}_{part}", kind) for part, kind in _columns(plain))
        else:
            yield name, _type_of(each.annotation)


def _plain(annotation: Any) -> Any:
    """Return a type without `| None` and `Annotated`."""
    while True:
        parts = _parts(annotation)
        if hasattr(annotation, "__metadata__"):
            annotation = get_args(annotation)[0]
        elif len(parts) == 1:
            (annotation,) = parts
        else:
            return annotation


def _parts(annotation: Any) -> list[Any]:
    """Return the types of a union, without None; empty if it is none."""
    if get_origin(annotation) not in {Union, type(int | str)}:
        return []
    return [each for each in get_args(annotation) if each is not type(None)]


def _type_of(annotation: Any) -> str:
    kind = _plain(annotation)
    if get_origin(kind) is list:
        item = _type_of(get_args(kind)[0])
        return f"list<{item}>" if item in _TYPES.values() else "json"
    if get_origin(kind) is dict:
        return "map" if _type_of(get_args(kind)[1]) == "float64" else "json"
    kinds = _parts(kind) or [kind]
    if all(isinstance(each, type) and issubclass(each, str) for each in kinds):
        return "string"
    literals = {type(each) for each in get_args(kind)}
    if len(literals) == 1 and get_origin(kind) is not Union:
        kind = literals.pop()
    return _TYPES.get(kind, "json")


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
