"""Decoding of a batch.

`decode_batch` first tries msgspec, which takes half the time of one pydantic model per item. A body
that msgspec rejects is decoded again by the pydantic models, which report what is wrong with each
item. So the models alone decide what is valid.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from rewardfleet.wire.episode import MAX_EPISODES, EpisodeBatchHeader, EpisodeRequest, RewardKind
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import validate_json

#: Largest body, in bytes, whose batch is computed on the event loop: a thread costs as much.
_SMALL_BODY = 4 * 1024
#: Lists of larger bodies become arrays at once: a list takes four times the memory, and it would
#: take long to copy from the process that decodes large bodies.
_LARGE_BODY = 1024 * 1024
_VECTORS, _MATRICES = ("step_rewards", "progress"), ("actions", "path")
#: Bytes of a list that are decoded at once, and what ends such a part.
_PART = 64 * 1024
_END_OF_NUMBER, _END_OF_ROW = re.compile(rb","), re.compile(rb"\]\s*,")

#: What the model of the header decodes.
_Raw = msgspec.Raw | msgspec.UnsetType
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `EpisodeRequest`; a test checks that they agree."""

    uid: _Name
    kind: RewardKind = "success"
    group: _Name | None = None
    masked: bool = False
    success: bool | Literal[0, 1] | None = None
    steps: float | None = None
    max_steps: float | None = None
    episode_reward: float | None = None
    step_rewards: list[float] | None = None
    step_token_ends: list[int] | None = None
    reward_model_score: float | None = None
    temperature: float | None = None
    actions: list[list[float]] | None = None
    path: list[list[float]] | None = None
    progress: list[float] | None = None
    visual_success: float | dict[str, Any] | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item], msgspec.Meta(min_length=1, max_length=MAX_EPISODES)]
    options: _Raw = msgspec.UNSET
    run: _Raw = msgspec.UNSET
    step: _Raw = msgspec.UNSET


@dataclass(frozen=True)
class _InvalidItem:
    uid: str
    reason: str


def _item_or_invalid(value: Any, validator: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validator(value)
    except ValidationError:
        try:
            return validate_json(EpisodeRequest, json.dumps(value).encode())
        except InvalidRequest as error:
            uid = value.get("uid") if isinstance(value, dict) else None
            return _InvalidItem(uid[:200] if isinstance(uid, str) else "", error.detail)


class _LenientBatch(EpisodeBatchHeader):
    items: list[Annotated[EpisodeRequest, WrapValidator(_item_or_invalid)]] = Field(
        min_length=1, max_length=MAX_EPISODES
    )


@dataclass
class DecodedBatch:
    """A decoded batch.

    Attributes:
        header: Its fields besides the items.
        items: In order; a placeholder for an invalid item.
        invalid: By index: why an item is invalid.
        is_small: Whether computing it takes less than a millisecond.
    """

    header: EpisodeBatchHeader
    items: list[Any]
    invalid: dict[int, InvalidRequest]
    is_small: bool


_DECODER = msgspec.json.Decoder(_Body)
_VECTOR = msgspec.json.Decoder(list[float])
_MATRIX = msgspec.json.Decoder(list[list[float]])


def _large_decoder() -> msgspec.json.Decoder[Any]:
    """Return a decoder of bodies that leaves the lists of items as they are."""
    fields: list[Any] = []
    for each in msgspec.structs.fields(Item):
        if each.name in {*_VECTORS, *_MATRICES}:
            fields.append((each.name, msgspec.Raw, msgspec.Raw(b"null")))
        else:
            fields.append((each.name, each.type, *([] if each.required else [each.default])))
    item = msgspec.defstruct("_LargeItem", fields, forbid_unknown_fields=True, gc=False)
    items = Annotated[list[item], msgspec.Meta(min_length=1, max_length=MAX_EPISODES)]  # type: ignore[valid-type] # made at run time
    rest = [(name, _Raw, msgspec.UNSET) for name in EpisodeBatchHeader.model_fields]
    body = msgspec.defstruct("_LargeBody", [("items", items), *rest], forbid_unknown_fields=True)
    return msgspec.json.Decoder(body)


_LARGE_DECODER = _large_decoder()


def decode_batch(body: bytes) -> DecodedBatch:
    """Decode a batch. An invalid item does not fail it.

    Raises:
        InvalidRequest: The body is not JSON, or not a batch.
    """
    is_large = len(body) > _LARGE_BODY
    try:
        decoded = (_LARGE_DECODER if is_large else _DECODER).decode(body)
        items = [_with_arrays(item) for item in decoded.items] if is_large else list(decoded.items)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _decode_leniently(body)
    fields = {name: getattr(decoded, name) for name in EpisodeBatchHeader.model_fields}
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    header = validate_json(EpisodeBatchHeader, msgspec.json.encode(given))
    return DecodedBatch(header, items, {}, len(body) <= _SMALL_BODY)


def _decode_leniently(body: bytes) -> DecodedBatch:
    batch = validate_json(_LenientBatch, body)
    decoded: list[EpisodeRequest | _InvalidItem] = list(batch.items)
    invalid = {
        index: InvalidRequest(f"item {index} (uid {item.uid[:60]!r}): {item.reason}")
        for index, item in enumerate(decoded)
        if isinstance(item, _InvalidItem)
    }
    items = [Item(item.uid) if isinstance(item, _InvalidItem) else item for item in decoded]
    if len(body) > _LARGE_BODY:
        items = [_compact(item) if isinstance(item, EpisodeRequest) else item for item in items]
    header = EpisodeBatchHeader(options=batch.options, run=batch.run, step=batch.step)
    return DecodedBatch(header, items, invalid, len(body) <= _SMALL_BODY)


def _with_arrays(large: Any) -> Item:
    """Return an item of a large body with its lists as arrays."""
    fields = {name: getattr(large, name) for name in Item.__struct_fields__}
    for name in _VECTORS:
        fields[name] = _array(fields[name], _VECTOR, _END_OF_NUMBER)
    for name in _MATRICES:
        fields[name] = _array(fields[name], _MATRIX, _END_OF_ROW)
    return Item(**fields)


def _array(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Any], end: re.Pattern[bytes]) -> Any:
    """Decode a list in parts, of which only one at a time exists as Python's numbers.

    Rows of different lengths are returned as lists: the batch is validated later.

    Raises:
        msgspec.MsgspecError: It is not such a list.
    """
    text = bytes(raw).strip()
    if text == b"null":
        return None
    if len(text) <= _PART or not (text.startswith(b"[") and text.endswith(b"]")):
        return _as_array(decoder.decode(text))
    arrays, start, last = [], 1, len(text) - 1
    while start <= last:
        found = end.search(text, start + _PART, last)
        stop = found.end() - 1 if found else last
        part = text[start:stop]
        if not part.strip():
            raise msgspec.DecodeError("a comma without a number")
        arrays.append(_as_array(decoder.decode(b"[%b]" % part)))
        start = stop + 1
    try:
        return np.concatenate(arrays)
    except ValueError:
        return decoder.decode(text)


def _as_array(values: Any) -> Any:
    try:
        return np.array(values, float)
    except ValueError:
        return values


def _compact(item: EpisodeRequest) -> EpisodeRequest:
    lists = {name: getattr(item, name) for name in (*_VECTORS, *_MATRICES)}
    given = {name: values for name, values in lists.items() if values is not None}
    return item.model_copy(update={name: _as_array(values) for name, values in given.items()})
