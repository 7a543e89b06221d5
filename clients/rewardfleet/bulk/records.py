"""Records of scores: one flat mapping per item, and the columns of a table of them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .flat_columns import model_columns

if TYPE_CHECKING:  # who reads outputs has no use of a client
    from rewardfleet.wire.score import Score

    from .run import ScoredItem

#: A record of an item: columns by name, which `to_json` encodes.
Record = dict[str, Any]

#: What a record has besides its score, with the types of the columns.
_ITEM_COLUMNS = {
    "row": "int64",
    "id": "string",
    "uid": "string",
    "place": "string",
    "completion": "int64",
}


def records_of(scored: "Iterable[ScoredItem]", columns: Iterable[str]) -> list[Record]:
    """Return the records of items.

    Args:
        columns: The names of all columns, in order; see `columns_of`.
    """
    empty = dict.fromkeys(columns)
    records = []
    for item, request_id, score in scored:
        uid, place = item.uid and _encodable(item.uid), _encodable(item.place)
        values = item.index, request_id, uid, place, item.completion
        record: Record = {**empty, **dict(zip(_ITEM_COLUMNS, values, strict=True))}
        for name, value in vars(score).items():
            if name in empty:
                record[name] = value
            elif value is not None:
                for part, each in vars(value).items():
                    record[f"{name}_{part}"] = each
        records.append(record)
    return records


def columns_of(score_type: "type[Score]") -> dict[str, str]:
    """Return the columns of a table of scores, and their types; see `model_columns`."""
    return _ITEM_COLUMNS | model_columns(score_type)


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, as names of files may have."""
    return text.encode(errors="replace").decode()
