"""Decoding of a batch.

`decode_batch` first tries msgspec, which takes half the time of one pydantic model per item. A body
that msgspec rejects is decoded again by the pydantic models, which report what is wrong with each
item. So the models alone decide what is valid.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from rewardfleet.wire.episode import MAX_EPISODES, EpisodeBatchHeader, EpisodeRequest, RewardKind
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import format_validation_error, validate, validate_json

#: Largest body, in bytes, whose batch is computed on the event loop: a thread costs as much.
_SMALL_BODY = 4 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of `EpisodeRequest`; a test checks that they agree."""

    uid: _Name
    kind: RewardKind = "success"
    group: _Name | None = None
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
    options: Any = msgspec.UNSET
    run: Any = msgspec.UNSET
    step: Any = msgspec.UNSET


@dataclass(frozen=True)
class _InvalidItem:
    uid: str
    reason: str


def _item_or_invalid(value: Any, validator: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validator(value)
    except ValidationError as error:
        uid = value.get("uid") if isinstance(value, dict) else None
        return _InvalidItem(
            uid[:200] if isinstance(uid, str) else "",
            format_validation_error(error, EpisodeRequest),
        )


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
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    header = validate(EpisodeBatchHeader, given)
    return DecodedBatch(header, list(decoded.items), {}, len(body) <= _SMALL_BODY)


def _decode_leniently(body: bytes) -> DecodedBatch:
    batch = validate_json(_LenientBatch, body)
    decoded: list[EpisodeRequest | _InvalidItem] = list(batch.items)
    invalid = {
        index: InvalidRequest(f"item {index} (uid {item.uid[:60]!r}): {item.reason}")
        for index, item in enumerate(decoded)
        if isinstance(item, _InvalidItem)
    }
    items = [Item(item.uid) if isinstance(item, _InvalidItem) else item for item in decoded]
    return DecodedBatch(batch, items, invalid, len(body) <= _SMALL_BODY)
