"""Score a video request: find the clip, decode it, call the judge."""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.errors import BackendFailed, InvalidRequest, RewardFleetError, Unavailable
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.anonymous_file import AnonymousFile, spool_bytes
from rewardfleet_server.engine import CachePolicy, Plan
from rewardfleet_server.threads import run_in_thread
from rewardfleet_server.tracing import stage

from .cache_key import cache_key, fingerprint
from .fetch import Fetcher
from .frames import Clip
from .judges import ALIASES, ClipJudge, FileJudge, Judge, Judgment
from .sources import (
    AnonymousSource,
    DecodeSpec,
    ImagesSource,
    PathSource,
    Source,
    VideoFiles,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Characters of a judge's output in an error message.
_MAX_QUOTED = 500


class FrameMemoryLimiter:
    """Limits the memory of decoded frames. Requests that exceed it wait, in order.

    It counts the most memory that a request can take, in units; a default request needs one.
    """

    _UNIT = 16 * 2**20
    _UNITS = 256  # 4 GiB

    def __init__(self) -> None:
        self._units = asyncio.Semaphore(self._UNITS)
        self._turn = asyncio.Lock()  # one request at a time collects units: no deadlock

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserve `size` bytes for the block; a request for more than the limit takes all of it."""
        needed, reserved = min(math.ceil(size / self._UNIT), self._UNITS), 0
        try:
            async with self._turn:
                while reserved < needed:
                    await self._units.acquire()
                    reserved += 1
            yield
        finally:
            for _ in range(reserved):
                self._units.release()


class VideoScorer:
    """Scores requests with one of the loaded judges.

    Args:
        judges: The loaded judges, by name.
        default: Name of the judge for requests that name none.
        files: Opens `video_path`.
        fetcher: Fetches `video_url`.
        readers: Threads that read and hash files; separate, so that this never waits for decoding.
        decoders: Threads that decode clips.
        max_video_bytes: The largest video accepted, from any source.
    """

    def __init__(
        self,
        judges: Mapping[str, Judge],
        *,
        default: str,
        files: VideoFiles,
        fetcher: Fetcher,
        readers: Executor,
        decoders: Executor,
        max_video_bytes: int,
    ) -> None:
        self._judges = judges
        self._default = default
        self._files = files
        self._fetcher = fetcher
        self._readers = readers
        self._decoders = decoders
        self._frame_memory = FrameMemoryLimiter()
        self._max_video_bytes = max_video_bytes
        self._provenance = {
            name: {"service": f"rewardfleet {__version__}", **judge.provenance}
            for name, judge in judges.items()
        }
        self._fingerprints = {
            name: fingerprint(provenance) for name, provenance in self._provenance.items()
        }

    async def plan(
        self, request: VideoRequest, upload: AnonymousFile | None = None
    ) -> Plan[VideoScore]:
        """Find the judge and the digest of the clip.

        Raises:
            InvalidRequest: The judge is not loaded or does not accept the options, or the file is
                not a video.
            RewardFleetError: See `VideoFiles.open` and `Fetcher.fetch`.
        """
        requested = request.backend or self._default
        name = self.loaded_name(requested)
        if name is None:
            loaded = ", ".join(sorted(self._judges))
            raise InvalidRequest(f"backend {requested[:60]!r} is not loaded; loaded: {loaded}")
        judge = self._judges[name]
        judge.check_options(request.backend_kwargs)
        source = await self._source(request, upload)
        digest = source.cached_digest()
        if digest is None:
            digest = await _in_thread(self._readers, source.digest)
        policy: CachePolicy[VideoScore] | None = None
        if judge.deterministic:
            key = cache_key(name, self._fingerprints[name], digest, request)
            policy = CachePolicy((key,))
        return Plan(name, lambda _: self._score(name, request, source, digest), policy)

    @property
    def judge_names(self) -> list[str]:
        """The names of the loaded judges, the default one first."""
        return [self._default, *(name for name in self._judges if name != self._default)]

    def loaded_name(self, name: str) -> str | None:
        """Return the name under which a judge is loaded, or None; `name` may be an alias."""
        same = {name, ALIASES.get(name, name), *(a for a, n in ALIASES.items() if n == name)}
        return next((loaded for loaded in self._judges if loaded in same), None)

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return the provenance that all judgments of `backend` share."""
        return dict(self._provenance[backend])

    def check_ready(self) -> None:
        """Judges are loaded before the service listens; there is nothing to wait for."""

    async def _source(self, request: VideoRequest, upload: AnonymousFile | None) -> Source:
        if upload is not None:
            return AnonymousSource(upload, "the uploaded file", self._max_video_bytes)
        if request.video_path is not None:
            return PathSource(self._files, request.video_path)
        if request.video_base64 is not None:
            content = request.video_base64
            video = await _in_thread(self._readers, lambda: spool_bytes(content))
            return AnonymousSource(video, "video_base64", self._max_video_bytes)
        if request.video_url is not None:
            fetched = await self._fetcher.fetch(request.video_url)
            return AnonymousSource(fetched, "the video of video_url", self._max_video_bytes)
        return ImagesSource(request.frames_base64 or [], request.fps)

    async def _score(
        self, name: str, request: VideoRequest, source: Source, digest: str
    ) -> VideoScore:
        judge = self._judges[name]
        stop = threading.Event()
        spec = DecodeSpec(digest, request.nframes, request.max_pixels, stop)
        try:
            if isinstance(judge, FileJudge):
                return await self._score_file(name, judge, request, source, spec)
            return await self._score_clip(name, judge, request, source, spec)
        finally:
            stop.set()  # if the request was cancelled, its decoding thread ends

    async def _score_clip(
        self,
        name: str,
        judge: ClipJudge,
        request: VideoRequest,
        source: Source,
        spec: DecodeSpec,
    ) -> VideoScore:
        timing = Timing()
        queue = stage(timing, "queue")  # for memory and a thread

        def decode() -> Clip:
            queue.stop()
            with stage(timing, "decode"):
                return source.clip(spec)

        with queue:
            async with self._frame_memory.reserve(spec.count * spec.max_pixels * 3):
                clip = await _in_thread(self._decoders, decode)
                with stage(timing, "backend"):
                    judging = judge.judge(request.task_text, clip, request.backend_kwargs)
                    judgment = await _checked(name, judging)
        return _score_of(name, judgment, timing, {"frames": _frame_metadata(clip)})

    async def _score_file(
        self,
        name: str,
        judge: FileJudge,
        request: VideoRequest,
        source: Source,
        spec: DecodeSpec,
    ) -> VideoScore:
        """Let the judge read the file and select the frames."""
        timing = Timing()
        with stage(timing, "decode") as decoding:
            async with self._file(source, spec) as path:
                decoding.stop()
                with stage(timing, "backend"):
                    judging = judge.judge_file(
                        request.task_text,
                        path,
                        spec.count,
                        spec.max_pixels,
                        request.backend_kwargs,
                    )
                    judgment = await _checked(name, judging)
        return _score_of(name, judgment, timing, {})

    @asynccontextmanager
    async def _file(self, source: Source, spec: DecodeSpec) -> AsyncIterator[str]:
        """Give the path of a source's video file for the block."""
        file = source.file(spec)
        entering = asyncio.ensure_future(_in_thread(self._decoders, file.__enter__))
        try:
            path = await asyncio.shield(entering)
        except asyncio.CancelledError:
            # A thread cannot be stopped: the file is removed when it is complete.
            entering.add_done_callback(lambda done: _leave(file) if not done.exception() else None)
            raise
        try:
            yield path
        finally:
            _leave(file)


async def _in_thread(threads: Executor, work: Callable[[], T]) -> T:
    try:
        return await run_in_thread(threads, work)
    except OSError as error:  # invalid input raises a RewardFleetError instead
        log.exception("a file could not be read")
        raise Unavailable(f"files cannot be read now: {error.strerror}", retry_after=1) from None


def _leave(file: AbstractContextManager[str]) -> None:
    file.__exit__(None, None, None)


def _frame_metadata(clip: Clip) -> dict[str, JsonValue]:
    height, width = clip.frames[0].shape[:2]
    return {
        "indices": list(clip.indices),
        "total": clip.total,
        "fps": clip.fps,
        "height": height,
        "width": width,
    }


async def _checked(name: str, judging: Awaitable[Judgment]) -> Judgment:
    """Wait for a judgment; other exceptions and invalid judgments become `BackendFailed`."""
    try:
        judgment = await judging
    except RewardFleetError:
        raise
    except Exception as error:
        log.exception("judge %s failed", name)
        message = f"judge {name} failed: {type(error).__name__}: {error}"
        raise BackendFailed(message[:_MAX_QUOTED]) from error
    if not _is_valid(judgment):
        raise BackendFailed(
            f"judge {name} returned {str(judgment)[:_MAX_QUOTED]}; a judgment has a score in "
            "[0, 1] or None, a text, and finite components"
        )
    return judgment


def _score_of(
    name: str, judgment: Judgment, timing: Timing, provenance: dict[str, JsonValue]
) -> VideoScore:
    return VideoScore(
        score=judgment.score,
        status=Status.ABSTAINED if judgment.score is None else Status.OK,
        components=dict(judgment.components),
        backend=name,
        timing_ms=timing,
        provenance={**provenance, **judgment.provenance},
        model_output=judgment.text,
        curve=judgment.curve,
    )


def _is_valid(judgment: object) -> bool:
    """Return whether a judgment is valid; a judge that a user provides is not type-checked."""
    if not isinstance(judgment, Judgment) or not isinstance(judgment.text, str):
        return False
    score, components = judgment.score, judgment.components.values()
    in_range = score is None or (isinstance(score, int | float) and 0 <= score <= 1)
    return in_range and all(isinstance(c, int | float) and math.isfinite(c) for c in components)
