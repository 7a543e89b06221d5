"""The id of a request: a digest by which scores, labels and logs of it are joined."""

import functools
import hashlib
import json
from collections.abc import Mapping
from types import NoneType
from typing import Any

from pydantic import BaseModel

from .score import LABELS
from .video import JSON_INPUTS, VideoRequest

#: The fields whose content counts by its SHA-256. Where pixels are in the body is no part of them.
_CONTENT: Any = {"video_base64": True, "frames_base64": True, "frames": {"offset"}}
#: By whether keys are sorted.
_ENCODERS = [
    json.JSONEncoder(sort_keys=each, separators=(",", ":"), ensure_ascii=False)
    for each in (False, True)
]
#: What has no keys.
_PLAIN = frozenset({str, bytes, int, float, bool, NoneType})


def request_id(request: BaseModel, options: BaseModel | None = None) -> str:
    """Return the SHA-256 of everything in a request that its score depends on, in hex.

    It is that of the JSON of all fields that differ from their defaults, and of the options of a
    batch, but for the `labels`. Keys are sorted and there is no white space, unless an object of
    the caller's own has its keys in another order, which programs see. A video counts by its
    `sha256`, if that is given or its content is part of the request, and else by its path or URL.
    """
    return digest_of(text_of(request, fields_of(request, options=options)))


def fields_of(
    request: BaseModel, sha256: str | None = None, options: BaseModel | None = None
) -> dict[str, Any]:
    """Return the fields of a request and its batch that differ from their defaults, as JSON.

    There are no `labels`, and a content counts by its `sha256`, which may be known.
    """
    excluded = _excluded(getattr(request, "labels", LABELS))
    fields = request.model_dump(mode="json", exclude=excluded, exclude_defaults=True)
    if options is not None and (given := options.model_dump(mode="json", exclude_defaults=True)):
        fields["options"] = given
    limits = vars(request).get("limits")
    if isinstance(limits, BaseModel) and limits.model_fields_set:
        # A limit that is given counts more than that of a row, also if it is the default.
        fields["limits"] = limits.model_dump(mode="json", exclude_unset=True)
    if digest := fields.get("sha256") or sha256 or content_sha256(request):
        fields["sha256"] = digest.lower()
    return fields


@functools.cache
def _excluded(labels: frozenset[str]) -> Any:
    return {**_CONTENT, **dict.fromkeys(labels, True)}


def text_of(request: BaseModel, fields: Mapping[str, Any]) -> str:
    """Return the text whose digest is the id of a request, given what `fields_of` returns."""
    if "sha256" in fields:
        fields = {name: each for name, each in fields.items() if name not in JSON_INPUTS}
    return _ENCODERS[_is_sorted(request)].encode(fields)


def _is_sorted(value: Any) -> bool:
    """Return whether all objects in a value have sorted keys, except for models."""
    if isinstance(value, list | tuple):
        return all(_is_sorted(each) for each in value if type(each) not in _PLAIN)
    if isinstance(value, dict):
        return list(value) == sorted(value) and _is_sorted([*value.values()])
    if isinstance(value, BaseModel):  # defaults are not the caller's
        given = [getattr(value, name) for name in value.model_fields_set]
        return all(type(each) in _PLAIN or _is_sorted(each) for each in given)
    return True


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def content_sha256(request: BaseModel) -> str | None:
    """Return the SHA-256 of the video that is part of a request, in hex; None if there is none."""
    content = hashlib.sha256()
    parts = request.content if isinstance(request, VideoRequest) else ()
    for part in parts:
        content.update(part)
    return content.hexdigest() if parts else None
