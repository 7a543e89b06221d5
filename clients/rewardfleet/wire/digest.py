"""The id of a request: a digest by which scores, labels and logs of it are joined."""

import hashlib
import json

from .score import Request
from .video import JSON_INPUTS

#: The fields whose content is that of `sha256`, where it is given.
_CONTENT = set(JSON_INPUTS)


def request_id(request: Request) -> str:
    """Return the SHA-256 of a request, in hex.

    It is that of the JSON of all fields that differ from their defaults, with sorted keys and
    without white space. The content of a video counts by its `sha256`, if that is given.
    """
    has_digest = getattr(request, "sha256", None) is not None
    fields = request.model_dump(
        mode="json", exclude=_CONTENT if has_digest else None, exclude_defaults=True
    )
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
