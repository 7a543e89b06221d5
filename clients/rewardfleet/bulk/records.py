"""Records of scores: one flat mapping per item, and the columns of a table of them."""

from typing import Any

from rewardfleet.flat_columns import arrow_table, model_columns, nested_models
from rewardfleet.wire.score import Score

from .requests import Item

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


def record_of(item: Item, request_id: str, score: Score) -> Record:
    """Return the record of an item."""
    record: Record = {
        "row": item.index,
        "id": request_id,
        "uid": item.uid and _encodable(item.uid),
        "place": _encodable(item.place),
        "completion": item.completion,
    }
    nested = nested_models(type(score))
    for name, value in score.model_dump(mode="json").items():
        if name in nested:
            fields = nested[name].model_fields
            record |= {f"{name}_{each}": (value or {}).get(each) for each in fields}
        else:
            record[name] = value
    return record


def columns_of(score_type: type[Score]) -> dict[str, str]:
    """Return the columns of a table of scores, and their types.

    The types are `float64`, `int64`, `string`, `bool`, `list<…>` of these, `map` (of text to
    float64), and `json`, a text.
    """
    return _ITEM_COLUMNS | model_columns(score_type)


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, as names of files may have."""
    return text.encode(errors="replace").decode()
