"""The cache key of a judgment: a digest of everything that the judgment depends on."""

import hashlib
import json
from collections.abc import Mapping

from pydantic import JsonValue

from rewardfleet.wire.video import VideoRequest


def fingerprint(provenance: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of a judge's provenance, in hex."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()


def cache_key(judge: str, judge_fingerprint: str, clip_digest: str, request: VideoRequest) -> str:
    """Return the cache key of a judgment: a SHA-256, in hex.

    Args:
        judge: The judge's name.
        judge_fingerprint: `fingerprint` of the judge's provenance.
        clip_digest: The digest of the clip's content.
        request: Task, number and size of frames, and `backend_kwargs` are part of the key.
    """
    parts = [
        judge,
        judge_fingerprint,
        clip_digest,
        request.task_text,
        request.nframes,
        request.max_pixels,
        request.backend_kwargs,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
