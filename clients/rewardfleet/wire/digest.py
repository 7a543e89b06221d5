"""The id of a request: a digest by which scores, labels and logs of it are joined."""

import hashlib
import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from .score import Request
from .video import JSON_INPUTS, VideoRequest

#: The fields whose content is that of `sha256`, where it is given.
_CONTENT = set(JSON_INPUTS)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def request_id(request: BaseModel) -> str:
    """Return the SHA-256 of a request, in hex.

    It is that of the JSON of all fields that differ from their defaults, with sorted keys and
    without white space. `run`, `step` and `uid` are no part of it. A video counts by its `sha256`,
    if that is given or its content is part of the request, and else by its path or URL.
    """
    has_digest = isinstance(request, VideoRequest) and request.sha256 is not None
    fields = request.model_dump(
        mode="json", exclude=_CONTENT if has_digest else None, exclude_defaults=True
    )
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and without white space, as `json.dumps` writes it."""
    try:
        return to_json(_sorted(value))
    except (_HasFloat, PydanticSerializationError):  # floats look different; lone surrogates
        return _ENCODER.encode(value).encode(errors="surrogatepass")


class _HasFloat(Exception):
    """A value has a float in it."""


def _sorted(value: Any) -> Any:
    """Return a value with sorted keys.

    Raises:
        _HasFloat: It has a float.
    """
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(each) for each in value]
    if isinstance(value, float):
        raise _HasFloat
    return value
