"""The items of a batch, as the JSON of each."""

import json
from typing import Annotated, Any

import msgspec

from rewardfleet.wire.score import MAX_BATCH_ITEMS, BatchRequest
from rewardfleet.wire.validation import validate_json


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MAX_BATCH_ITEMS)]


_BODY = msgspec.json.Decoder(_Body)


def json_items(body: bytes) -> list[bytes]:
    """Return the JSON of each item of a batch, so that an invalid item does not fail the others.

    Raises:
        InvalidRequest: The body is not JSON, or not a batch.
    """
    try:
        return [bytes(item) for item in _BODY.decode(body).items]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        # What Python's JSON has besides the standard's is refused item by item. Or it says what is
        # wrong with the batch.
        items = validate_json(BatchRequest[Any], body).items
    return [json.dumps(item).encode() for item in items]
