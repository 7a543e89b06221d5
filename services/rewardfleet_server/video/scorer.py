"""The video service's part of the journey: find the clip, decode it, ask the judge."""

import asyncio
import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.errors import BackendFailed, InvalidRequest, RewardFleetError
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.pipeline import Plan

from .frames import Clip
from .judges import Judge, Judgment
from .sources import BytesSource, PathSource, PicturesSource, Source, VideoFiles

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Characters of a judge's own words in a problem.
_MAX_SAID = 500


class VideoScorer:
    """Judges clips by one of several judges.

    Args:
        judges: The loaded judges by name.
        default: The judge of requests that name none.
        files: Where `video_path` may lead.
        threads: Where files are read and clips decoded.
    """

    def __init__(
        self,
        judges: Mapping[str, Judge],
        *,
        default: str,
        files: VideoFiles,
        threads: Executor,
    ) -> None:
        self._judges = judges
        self._default = default
        self._files = files
        self._threads = threads
        self._provenance = {
            name: {"service": f"rewardfleet {__version__}", **judge.provenance}
            for name, judge in judges.items()
        }
        self._fingerprints = {
            name: hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()
            for name, provenance in self._provenance.items()
        }

    async def plan(self, request: VideoRequest) -> Plan[VideoScore]:
        """Find the judge and name the clip by its content.

        Raises:
            InvalidRequest: The judge is not loaded, does not take these options, or the video
                is none.
            Forbidden, NotFound, TooLarge: See `VideoFiles.open`.
        """
        name = request.backend or self._default
        judge = self._judges.get(name)
        if judge is None:
            loaded = ", ".join(sorted(self._judges))
            raise InvalidRequest(f"backend {name[:60]!r} is not loaded here; loaded: {loaded}")
        judge.check_options(request.backend_kwargs)
        source = self._source(request)
        digest = source.quick_digest()
        if digest is None:
            digest = await self._in_thread(source.digest)
        key = self._key(name, digest, request) if judge.deterministic else None
        return Plan(name, key, lambda: self._score(name, request, source, digest))

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return what all judgments of `backend` have in common."""
        return dict(self._provenance[backend])

    def check_ready(self) -> None:
        """Judges are loaded before the service listens; there is nothing to wait for."""

    def _source(self, request: VideoRequest) -> Source:
        if request.video_path is not None:
            return PathSource(self._files, request.video_path)
        if request.video_base64 is not None:
            return BytesSource(request.video_base64)
        return PicturesSource(request.frames_base64 or [], request.fps)

    def _key(self, name: str, digest: str, request: VideoRequest) -> str:
        """Name everything that the judgment depends on."""
        parts = [
            name,
            self._fingerprints[name],
            digest,
            request.task_text,
            request.nframes,
            request.max_pixels,
            request.backend_kwargs,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    async def _score(
        self, name: str, request: VideoRequest, source: Source, digest: str
    ) -> VideoScore:
        asked = time.monotonic()
        clip, decode_ms = await self._decode(request, source, digest)
        decoded = time.monotonic()
        judgment = await self._judge(name, request, clip)
        backend_ms = (time.monotonic() - decoded) * 1000
        height, width = clip.frames[0].shape[:2]
        return VideoScore(
            score=judgment.score,
            status=Status.ABSTAINED if judgment.score is None else Status.OK,
            components=dict(judgment.components),
            backend=name,
            timing_ms=Timing(
                queue=(decoded - asked) * 1000 - decode_ms,  # waiting for a decoding thread
                decode=round(decode_ms, 3),
                backend=round(backend_ms, 3),
            ),
            provenance={
                "frames": {
                    "indices": list(clip.indices),
                    "total": clip.total,
                    "fps": clip.fps,
                    "height": height,
                    "width": width,
                }
            },
            model_output=judgment.text,
        )

    async def _decode(
        self, request: VideoRequest, source: Source, digest: str
    ) -> tuple[Clip, float]:
        """Return the clip, and the milliseconds that its decoding took."""
        stop = threading.Event()
        count, max_pixels = request.nframes, request.max_pixels

        def decode() -> tuple[Clip, float]:
            started = time.monotonic()
            clip = source.clip(digest=digest, count=count, max_pixels=max_pixels, stop=stop)
            return clip, (time.monotonic() - started) * 1000

        try:
            return await self._in_thread(decode)
        finally:
            stop.set()  # where the caller has gone, the thread need not go on

    async def _judge(self, name: str, request: VideoRequest, clip: Clip) -> Judgment:
        """Ask the judge; what it raises, or answers wrongly, is a failure of the backend."""
        try:
            judgment = await self._judges[name].judge(
                request.task_text, clip, request.backend_kwargs
            )
        except RewardFleetError:
            raise
        except Exception as error:
            log.exception("judge %s failed", name)
            message = f"judge {name} failed: {type(error).__name__}: {error}"
            raise BackendFailed(message[:_MAX_SAID]) from error
        if not _is_sound(judgment):
            raise BackendFailed(
                f"judge {name} answered {str(judgment)[:_MAX_SAID]}; a judgment has a score in "
                "[0, 1] or none, a text, and finite components"
            )
        return judgment

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _is_sound(judgment: object) -> bool:
    """Check what a type checker cannot know of somebody else's judge."""
    if not isinstance(judgment, Judgment) or not isinstance(judgment.text, str):
        return False
    score, components = judgment.score, judgment.components.values()
    in_range = score is None or (isinstance(score, int | float) and 0 <= score <= 1)
    return in_range and all(isinstance(c, int | float) and math.isfinite(c) for c in components)
