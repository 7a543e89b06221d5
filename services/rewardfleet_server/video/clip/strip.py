"""The small pictures of the score log."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rewardfleet.score_log.strip import MAX_FRAMES, MAX_SIDE, strip_of
from rewardfleet.wire.errors import RewardFleetError

from .frames import DecodeSpec, decode_video
from .sources import VideoFiles
from .video_reader import TimeRange

#: Seconds that decoding a clip for a page may take, and strips that are kept, of some kilobytes.
_SECONDS, _MAX_KEPT = 20.0, 64


@dataclass(eq=False)
class FileStrips:
    """Strips of files. Some are kept, as a page asks for the same one again."""

    _files: VideoFiles  #: what may be read
    _kept: dict[tuple[Any, ...], bytes | None] = field(default_factory=dict, init=False)

    def strip_of(self, request: Mapping[str, Any]) -> bytes | None:
        """Return frames of the clip of a request by path; None if it cannot be read, or changed."""
        start, end = request.get("start_s"), request.get("end_s")
        part = None if start is end is None else TimeRange(start or 0.0, end or float("inf"))
        try:
            with self._files.open(request["video_path"]) as (path, sha256):
                if request.get("sha256", sha256) != sha256:
                    return None
                key = (sha256, start, end)
                strip = self._kept.get(key) or _strip_of_part(path, part)
        except (RewardFleetError, TimeoutError):
            return None
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[key] = strip
        return strip


def _strip_of_part(path: str, part: TimeRange | None) -> bytes | None:
    stop = threading.Event()
    timer = threading.Timer(_SECONDS, stop.set)
    timer.start()
    try:
        clip = decode_video(path, DecodeSpec(MAX_FRAMES, MAX_SIDE**2, part=part, stop=stop))
    finally:
        timer.cancel()
    return strip_of(clip.frames)
