"""Records of items: those of a score log, with where the items are in the input."""

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rewardfleet.score_log.record import (
    COLUMNS,
    MAX_RECORD_BYTES,
    OF_INPUT,
    Record,
    Scored,
    record_of,
)
from rewardfleet.wire.digest import digest_of
from rewardfleet.wire.score import Request

from .arrow import json_text

if TYPE_CHECKING:  # who reads outputs has no use of a client
    from .requests import RequestBuilder
    from .run import ScoredItem

#: The columns of a table of records, and their types.
ITEM_COLUMNS = OF_INPUT | COLUMNS


def records_of(scored: "Iterable[ScoredItem]", builder: "RequestBuilder") -> list[Record]:
    """Return the records of items, whose requests `builder` has built."""
    now = time.time()
    return [_record_of(each, builder, now) for each in scored]


def _record_of(scored: "ScoredItem", builder: "RequestBuilder", now: float) -> Record:
    item, request, score = scored
    place = _encodable(item.place)
    own = builder.service, now, request or Request(), score
    record = record_of(Scored(*own, options=builder.options))
    if request is None:
        record["id"] = digest_of(json.dumps([item.row.place, item.completion]))
    if request is None or len(record["request"]) > MAX_RECORD_BYTES:  # more than readers take
        record["request"] = None
    path = builder.clip_path(item.row)
    return {
        "row": item.index,
        "place": place,
        "completion": item.completion,
        "path": None if path is None else _encodable(str(path.resolve())),
        "metadata": json_text(builder.metadata_of(item.row)),
        "keep": getattr(score, "keep", None),  # of an episode
        **record,
        "uid": record["uid"] if item.uid is None else _encodable(item.uid),
    }


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, as names of files may have."""
    return text.encode(errors="replace").decode()
