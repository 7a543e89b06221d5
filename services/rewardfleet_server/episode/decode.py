"""A batch's body, read twice as fast as a model could be made of each item.

The fast way takes what is right in form. Whatever it will not take, the models of the wire read
again, and name what is wrong item by item; so there is one say in what a good item is.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from rewardfleet.wire.episode import MAX_EPISODES, EpisodeBatchHead, EpisodeRequest, Kind
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import format_validation_error, validate, validate_json

#: Bytes of a body whose batch is computed on the event loop: a thread would cost as much.
_SMALL_BODY = 4 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """`EpisodeRequest` in form; a test holds the two together."""

    uid: _Name
    kind: Kind = "success"
    group: _Name | None = None
    success: bool | Literal[0, 1] | None = None
    steps: float | None = None
    max_steps: float | None = None
    episode_reward: float | None = None
    step_rewards: list[float] | None = None
    step_token_ends: list[int] | None = None
    rm_score: float | None = None
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
class _Bad:
    """Why an item is none, and its name where it has one."""

    uid: str
    why: str


def _item_or_bad(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        uid = value.get("uid") if isinstance(value, dict) else None
        return _Bad(
            uid[:200] if isinstance(uid, str) else "",
            format_validation_error(error, EpisodeRequest),
        )


class _SlowBatch(EpisodeBatchHead):
    items: list[Annotated[EpisodeRequest, WrapValidator(_item_or_bad)]] = Field(
        min_length=1, max_length=MAX_EPISODES
    )


@dataclass
class Batch:
    """A batch that was read.

    Attributes:
        head: What holds for all items.
        items: In order; a placeholder where one is bad.
        invalid: By index, why an item is invalid.
        is_small: Whether it takes less than a millisecond to compute.
    """

    head: EpisodeBatchHead
    items: list[Any]
    invalid: dict[int, InvalidRequest]
    is_small: bool


_DECODER = msgspec.json.Decoder(_Body)


def decode_batch(body: bytes) -> Batch:
    """Read a batch.

    Raises:
        InvalidRequest: It is no JSON, or no batch; an item that is none is in `bad`.
    """
    try:
        fast = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _decode_slowly(body)
    given = {name: getattr(fast, name) for name in EpisodeBatchHead.model_fields}
    told = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    return Batch(validate(EpisodeBatchHead, told), list(fast.items), {}, len(body) <= _SMALL_BODY)


def _decode_slowly(body: bytes) -> Batch:
    batch = validate_json(_SlowBatch, body)
    given: list[EpisodeRequest | _Bad] = list(batch.items)
    bad = {
        index: InvalidRequest(f"item {index} (uid {item.uid[:60]!r}): {item.why}")
        for index, item in enumerate(given)
        if isinstance(item, _Bad)
    }
    items = [Item(item.uid) if isinstance(item, _Bad) else item for item in given]
    return Batch(batch, items, bad, len(body) <= _SMALL_BODY)
