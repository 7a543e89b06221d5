"""Decoding of a batch.

`decode_batch` first tries msgspec, which takes a quarter of the time of one pydantic model per
item. A body that msgspec rejects is decoded again by the pydantic models, which report what is
wrong with each item. So the models alone decide what is valid.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardfleet.wire.episode import MAX_EPISODES, EpisodeBatchHeader, EpisodeRequest, RewardKind
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import validate_json

#: Largest body, in bytes, whose batch is computed on the event loop: a thread costs as much.
_SMALL_BODY = 4 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Array = NDArray[np.float64]


class Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `EpisodeRequest`, its numbers per step as arrays; a test compares them."""

    uid: _Name
    kind: RewardKind = "success"
    group: _Name | None = None
    masked: bool = False
    success: bool | Literal[0, 1] | None = None
    steps: float | None = None
    max_steps: float | None = None
    episode_reward: float | None = None
    step_rewards: _Array | None = None
    step_token_ends: list[int] | None = None
    reward_model_score: float | None = None
    temperature: float | None = None
    actions: _Array | None = None
    path: _Array | None = None
    progress: _Array | None = None
    visual_success: float | dict[str, Any] | None = None


class _BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item], msgspec.Meta(min_length=1, max_length=MAX_EPISODES)]
    # The model of the header decodes these.
    options: msgspec.Raw = msgspec.Raw(b"{}")
    run: msgspec.Raw = msgspec.Raw(b"null")
    step: msgspec.Raw = msgspec.Raw(b"null")
    attempt: msgspec.Raw = msgspec.Raw(b"null")


def _array(_: type, value: Any) -> _Array:
    """Return numbers, or rows of one length, as an array to save memory; ValueError for others."""
    has_rows = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    return np.array(msgspec.convert(value, list[list[float]] if has_rows else list[float]), float)


_DECODER = msgspec.json.Decoder(_BatchBody, dec_hook=_array)


class _AnyItems(EpisodeBatchHeader):
    items: list[Any] = Field(min_length=1, max_length=MAX_EPISODES)


@dataclass
class DecodedBatch:
    """A decoded batch."""

    header: EpisodeBatchHeader  #: its fields besides the items
    items: list[Item]  #: in order; a placeholder for an invalid item
    invalid: dict[int, InvalidRequest]  #: by index: why an item is invalid
    is_small: bool = False  #: whether computing it takes less than a millisecond


def decode_batch(body: bytes) -> DecodedBatch:
    """Decode a batch. An invalid item does not fail it.

    Raises:
        InvalidRequest: The body is not JSON, or not a batch.
    """
    try:
        decoded = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _decode_leniently(body)
    fields = {name: getattr(decoded, name) for name in EpisodeBatchHeader.model_fields}
    header = validate_json(EpisodeBatchHeader, msgspec.json.encode(fields))
    return DecodedBatch(header, decoded.items, {}, len(body) <= _SMALL_BODY)


def _decode_leniently(body: bytes) -> DecodedBatch:
    batch = validate_json(_AnyItems, body)
    items: list[Item] = []
    invalid: dict[int, InvalidRequest] = {}
    for index, value in enumerate(batch.items):
        try:
            items.append(_as_item(validate_json(EpisodeRequest, json.dumps(value).encode())))
        except InvalidRequest as error:
            uid = value.get("uid") if isinstance(value, dict) else None
            items.append(Item(uid[:200] if isinstance(uid, str) else ""))
            reason = f"item {index} (uid {items[index].uid[:60]!r}): {error.detail}"
            invalid[index] = InvalidRequest(reason)
    return DecodedBatch(batch, items, invalid)


def _as_item(request: EpisodeRequest) -> Item:
    """Return an item with arrays, except for rows of different lengths, which are refused later."""
    fields = {name: getattr(request, name) for name in Item.__struct_fields__}
    for name in ("step_rewards", "actions", "path", "progress"):
        if fields[name] is not None:
            with suppress(ValueError):
                fields[name] = np.array(fields[name], float)
    return Item(**fields)


def logged_items(
    batch: DecodedBatch, response: bytes
) -> Iterator[tuple[EpisodeRequest, Mapping[str, Any]]]:
    """Yield the valid items of a batch, each with the fields of its score, for the score log."""
    answer = msgspec.json.decode(response)
    running = {"running": answer["running"]} if "running" in answer else {}  # for a replay
    for index, (item, fields) in enumerate(zip(batch.items, answer["results"], strict=True)):
        if index not in batch.invalid:
            yield _as_request(item), {**fields, **running}


def _as_request(item: Item) -> EpisodeRequest:
    """Return an item as it was sent, without arrays."""
    given = {name: getattr(item, name) for name in EpisodeRequest.model_fields}
    fields = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in given.items()
        if value is not None
    }
    return EpisodeRequest.model_validate(fields)
