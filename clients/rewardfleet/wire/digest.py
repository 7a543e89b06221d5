"""The id of a request: a digest by which scores, labels and logs of it are joined."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

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
    text = _ENCODER.encode(fields)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _content_of(request: BaseModel) -> Iterable[Buffer]:
    """Return the content of a video whose digest counts, in parts; nothing if there is none."""
    frames = getattr(request, "frames", None)
    if isinstance(frames, Frames):
        return frames.pixels
    video = getattr(request, "video_base64", None)
    return getattr(request, "frames_base64", None) or (() if video is None else [video])
