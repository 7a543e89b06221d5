"""The id of a request: a digest by which scores, labels and logs of it are joined."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from .frames import Buffer, Frames
from .video import JSON_INPUTS, VideoRequest

#: The fields that say what a request is part of, and not what is scored.
LABELS = frozenset({"run", "step", "uid", "attempt"})
#: The fields whose content counts by its SHA-256.
_CONTENT = frozenset({"video_base64", "frames_base64"})
#: Where the pixels are in the body is no part of the frames.
_EXCLUDED: Any = {**dict.fromkeys(LABELS | _CONTENT, True), "frames": {"offset"}}
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def request_id(request: BaseModel) -> str:
    """Return the SHA-256 of a request, in hex.

    It is that of the JSON of all fields that differ from their defaults, with sorted keys and
    without white space. `run`, `step` and `uid` are no part of it. A video counts by its `sha256`,
    if that is given or its content is part of the request, and else by its path or URL.
    """
    return digest_of(text_of(fields_of(request)))


def fields_of(request: BaseModel, sha256: str | None = None) -> dict[str, Any]:
    """Return the fields of a request that differ from their defaults, as JSON.

    There are no `LABELS`, and a content counts by its `sha256`.

    Args:
        sha256: That of the content, if it is known.
    """
    fields = request.model_dump(mode="json", exclude=_EXCLUDED, exclude_defaults=True)
    if (digest := fields.get("sha256")) is not None:
        fields["sha256"] = digest.lower()
    elif sha256 is not None:
        fields["sha256"] = sha256
    elif (content := content_sha256(request)) is not None:
        fields["sha256"] = content
    return fields


def text_of(fields: Mapping[str, Any]) -> str:
    """Return the text whose digest is the id of a request, given what `fields_of` returns."""
    if "sha256" in fields:
        fields = {name: each for name, each in fields.items() if name not in JSON_INPUTS}
    return canonical_json(fields).decode(errors="surrogatepass")


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def content_sha256(request: BaseModel) -> str | None:
    """Return the SHA-256 of the video that is part of a request, in hex; None if there is none."""
    content = hashlib.sha256()
    parts = _content_of(request)
    for part in parts:
        content.update(part)
    return content.hexdigest() if parts else None


def _content_of(request: BaseModel) -> Sequence[Buffer]:
    """Return the content of a video whose digest counts, in parts; nothing if there is none."""
    if not isinstance(request, VideoRequest):
        return ()
    if isinstance(request.frames, Frames):
        return request.frames.pixels
    video = request.video_base64
    return request.frames_base64 or (() if video is None else [video])


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
