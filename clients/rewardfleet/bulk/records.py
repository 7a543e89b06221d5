"""Records of scores: one flat mapping per item, and the columns of a table of them."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from rewardfleet.flat_columns import arrow_table, model_columns, nested_models
from rewardfleet.wire.score import Score

from .arrow import pyarrow
from .run import Scored

__all__ = ["Record", "arrow_table", "columns_of", "record_of"]

#: A record of an item: columns by name, as JSON.
Record = dict[str, Any]

#: What a record has besides its score, with the types of the columns.
_ITEM_COLUMNS = {
    "row": "int64",
    "id": "string",
    "uid": "string",
    "place": "string",
    "completion": "int64",
}


def encode_scores(scored: Iterable[Scored]) -> bytes:
    """Return items and their scores as JSON, in one line, which `records_of` reads."""
    return to_json(
        [
            (
                item.index,
                request_id,
                item.uid and _encodable(item.uid),
                _encodable(item.place),
                item.completion,
                score,
            )
            for item, request_id, score in scored
        ]
    )


def records_of(line: bytes, columns: Iterable[str]) -> list[Record]:
    """Return the records of what `encode_scores` has encoded.

    Args:
        columns: The names of all columns, in order; see `columns_of`.
    """
    empty = dict.fromkeys(columns)
    records = []
    for *values, score in from_json(line):
        record: Record = {**empty, **dict(zip(_ITEM_COLUMNS, values, strict=True))}
        for name, value in score.items():
            if name in empty:
                record[name] = value
            elif value is not None:
                for part, each in value.items():
                    record[f"{name}_{part}"] = each
        records.append(record)
    return records


def columns_of(score_type: type[Score]) -> dict[str, str]:
    """Return the columns of a table of scores, and their types.

    The types are `float64`, `int64`, `string`, `bool`, `list<…>` of these, `map` (of text to
    float64), and `json`, a text.
    """
    return _ITEM_COLUMNS | dict(_columns(score_type))


def _columns(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, each in model.model_fields.items():
        nested = _nested(model).get(name)
        if nested is None:
            yield name, _type_of(each.annotation)
        else:
            yield from ((f"{name}_{part}", kind) for part, kind in _columns(nested))


@functools.cache
def _nested(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the fields of a model that are models, whose fields become columns."""
    found = {}
    for name, each in model.model_fields.items():
        kind = _plain(each.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found[name] = kind
    return found


def _plain(annotation: Any) -> Any:
    """Return a type without `| None` and `Annotated`."""
    while True:
        parts = [each for each in get_args(annotation) if each is not type(None)]
        is_optional = get_origin(annotation) in {Union, type(int | str)} and len(parts) == 1
        if hasattr(annotation, "__metadata__") or is_optional:
            annotation = parts[0]
        else:
            return annotation


def _type_of(annotation: Any) -> str:
    kind = _plain(annotation)
    if get_origin(kind) is list:
        item = _type_of(get_args(kind)[0])
        return f"list<{item}>" if item in _TYPES.values() else "json"
    if get_origin(kind) is dict:
        return "map" if _type_of(get_args(kind)[1]) == "float64" else "json"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "string"
    literals = {type(each) for each in get_args(kind)}
    if len(literals) == 1 and get_origin(kind) is not Union:
        kind = literals.pop()
    return _TYPES.get(kind, "json")


def arrow_table(records: list[Record], columns: Mapping[str, str]) -> Any:
    """Return records as a `pyarrow.Table`."""
    pa = pyarrow()

    def arrow_type(kind: str) -> Any:
        if kind == "map":
            return pa.map_(pa.string(), pa.float64())
        if kind.startswith("list<"):
            return pa.list_(arrow_type(kind[5:-1]))
        return pa.type_for_alias("string" if kind == "json" else kind)

    def values(name: str, kind: str) -> list[Any]:
        found = [record.get(name) for record in records]
        if kind == "json":
            return [None if each is None else to_json(each).decode() for each in found]
        if kind == "map":
            return [list((each or {}).items()) for each in found]
        return found

    arrays = {
        name: pa.array(values(name, kind), arrow_type(kind)) for name, kind in columns.items()
    }
    return pa.table(arrays)


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, as names of files may have."""
    return text.encode(errors="replace").decode()
