"""The cache key of a judgment: everything that it depends on."""

import hashlib
import json
from collections.abc import Mapping

from pydantic import JsonValue

from rewardfleet.wire.video import VideoRequest


def fingerprint(provenance: Mapping[str, JsonValue]) -> str:
    """Return the digest of a judge's provenance."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()


def cache_key(judge: str, judge_fingerprint: str, clip_digest: str, request: VideoRequest) -> str:
    """Return the key of a judgment.

    Args:
        judge: The judge's name.
        judge_fingerprint: The digest of its provenance.
        clip_digest: The digest of the clip's content.
        request: The task, the sampling and the judge's options are taken from it.
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
