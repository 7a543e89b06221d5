"""Decoding of a batch.

msgspec decodes each item, which takes a tenth of the time of a pydantic model. An item that msgspec
rejects is decoded again by the pydantic model, which reports what is wrong with it. So the model
alone decides what is valid.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Protocol

import msgspec

from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.policy_text import MAX_CHARACTERS, UNUSABLE
from rewardfleet.wire.tools import (
    MAX_GROUND_TRUTH,
    Family,
    ToolDescription,
    ToolsOptions,
    ToolsRequest,
)
from rewardfleet.wire.validation import validate_json
from rewardfleet_server.http.batch_items import json_items


class Item(Protocol):
    """The fields of `ToolsRequest`."""

    @property
    def response(self) -> str: ...
    @property
    def ground_truth(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def run(self) -> str | None: ...
    @property
    def options(self) -> ToolsOptions: ...
    @property
    def tools(self) -> Sequence[ToolDescription]: ...
    @property
    def tool_families(self) -> Mapping[str, Family]: ...


class _Fields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of an item without labels and descriptions of its own; a test compares them."""

    response: str
    ground_truth: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GROUND_TRUTH)]
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    run: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    options: msgspec.Raw = msgspec.Raw(b"{}")


class FastItem(msgspec.Struct, gc=False):
    """An item that msgspec decoded."""

    response: str
    ground_truth: str
    step: int | None
    run: str | None
    options: ToolsOptions
    tools: tuple[ToolDescription, ...] = ()
    tool_families: Mapping[str, Family] = {}


_FIELDS = msgspec.json.Decoder(_Fields)
_NOT_DECODED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def decode_batch(body: bytes) -> list[Item | RewardFleetError]:
    """Decode a batch. An invalid item does not fail it.

    Raises:
        InvalidRequest: The body is not JSON, or not a batch.
    """
    return [_item(item) for item in json_items(body)]


def _item(raw: bytes) -> Item | InvalidRequest:
    try:
        fields = _FIELDS.decode(raw)
        options = _options(bytes(fields.options))
        if fields.step is not None or options.scheduled_by is None:
            # It has no lone surrogates: msgspec refuses them.
            response = fields.response if len(fields.response) <= MAX_CHARACTERS else UNUSABLE
            return FastItem(response, fields.ground_truth, fields.step, fields.run, options)
    except (*_NOT_DECODED, InvalidRequest):
        pass
    try:
        return validate_json(ToolsRequest, raw)
    except InvalidRequest as error:
        return error


@lru_cache(maxsize=16)  # a mapping of families may take megabytes
def _options(text: bytes) -> ToolsOptions:
    return validate_json(ToolsOptions, text)
