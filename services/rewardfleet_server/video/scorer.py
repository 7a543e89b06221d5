"""The video service's part of the journey: find the clip, decode it, ask the judge."""

import asyncio
import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.errors import BackendFailed, InvalidRequest, RewardFleetError, Unavailable
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.pipeline import Plan
from rewardfleet_server.uploads import HeldFile, held_bytes

from .fetch import Fetcher
from .frames import Clip
from .judges import ALIASES, ClipJudge, FileJudge, Judge, Judgment
from .sources import (
    HeldSource,
    PathSource,
    PicturesSource,
    Sampling,
    Source,
    VideoFiles,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Characters of a judge's own words in a problem.
_MAX_SAID = 500


class _Room:
    """A bound on the memory that decoded frames take up together; who finds none waits, in order.

    It is reckoned by what a request may take at most, in units, so that the common one is one.
    """

    _UNIT = 16 * 2**20
    _UNITS = 256  # 4 GiB

    def __init__(self) -> None:
        self._units = asyncio.Semaphore(self._UNITS)
        self._turn = asyncio.Lock()  # one at a time gathers units, so that no two block each other

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        wanted, held = min(math.ceil(size / self._UNIT), self._UNITS), 0
        try:
            async with self._turn:
                while held < wanted:
                    await self._units.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._units.release()


class VideoScorer:
    """Judges clips by one of several judges.

    Args:
        judges: The loaded judges by name.
        default: The judge of requests that name none.
        files: Where `video_path` may lead.
        fetcher: Where `video_url` may lead.
        readers: Where files are read and hashed, which must not wait for decoding.
        decoders: Where clips are decoded.
        max_video_bytes: The largest video accepted, whichever way it comes.
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
        self._room = _Room()
        self._max_video_bytes = max_video_bytes
        self._provenance = {
            name: {"service": f"rewardfleet {__version__}", **judge.provenance}
            for name, judge in judges.items()
        }
        self._fingerprints = {
            name: hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()
            for name, provenance in self._provenance.items()
        }

    async def plan(self, request: VideoRequest, upload: HeldFile | None) -> Plan[VideoScore]:
        """Find the judge and name the clip by its content.

        Raises:
            InvalidRequest: The judge is not loaded, does not take these options, or the video
                is none.
            Forbidden, NotFound, TooLarge: See `VideoFiles.open`.
        """
        name = self._loaded_name(request.backend or self._default)
        judge = self._judges.get(name)
        if judge is None:
            loaded = ", ".join(sorted(self._judges))
            raise InvalidRequest(f"backend {name[:60]!r} is not loaded here; loaded: {loaded}")
        judge.check_options(request.backend_kwargs)
        source = await self._source(request, upload)
        digest = source.quick_digest()
        if digest is None:
            digest = await _in_thread(self._readers, source.digest)
        key = self._key(name, digest, request) if judge.deterministic else None
        return Plan(name, key, lambda: self._score(name, request, source, digest))

    def _loaded_name(self, name: str) -> str:
        """An alias stands for the judge's name, and the name for a judge loaded by its alias."""
        same = {name, ALIASES.get(name, name), *(a for a, n in ALIASES.items() if n == name)}
        return next((loaded for loaded in self._judges if loaded in same), name)

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return what all judgments of `backend` have in common."""
        return dict(self._provenance[backend])

    def check_ready(self) -> None:
        """Judges are loaded before the service listens; there is nothing to wait for."""

    async def _source(self, request: VideoRequest, upload: HeldFile | None) -> Source:
        if upload is not None:
            return HeldSource(upload, "the uploaded file", self._max_video_bytes)
        if request.video_path is not None:
            return PathSource(self._files, request.video_path)
        if request.video_base64 is not None:
            content = request.video_base64
            held = await _in_thread(self._readers, lambda: held_bytes(content))
            return HeldSource(held, "video_base64", self._max_video_bytes)
        if request.video_url is not None:
            fetched = await self._fetcher.fetch(request.video_url)
            return HeldSource(fetched, "the video of video_url", self._max_video_bytes)
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
        judge = self._judges[name]
        stop = threading.Event()
        wanted = Sampling(digest, request.nframes, request.max_pixels, stop)
        try:
            if isinstance(judge, FileJudge):
                return await self._score_file(name, judge, request, source, wanted)
            return await self._score_clip(name, judge, request, source, wanted)
        finally:
            stop.set()  # where the caller has gone, a decoding thread need not go on

    async def _score_clip(
        self,
        name: str,
        judge: ClipJudge,
        request: VideoRequest,
        source: Source,
        wanted: Sampling,
    ) -> VideoScore:
        def decode() -> tuple[Clip, float]:
            started = time.monotonic()
            return source.clip(wanted), (time.monotonic() - started) * 1000

        asked = time.monotonic()
        async with self._room.take(wanted.count * wanted.max_pixels * 3):
            clip, decode_ms = await _in_thread(self._decoders, decode)
            decoded = time.monotonic()
            judging = judge.judge(request.task_text, clip, request.backend_kwargs)
            judgment = await _judged(name, judging)
        timing = Timing(
            queue=(decoded - asked) * 1000 - decode_ms,  # waiting for a decoding thread
            decode=round(decode_ms, 3),
            backend=round((time.monotonic() - decoded) * 1000, 3),
        )
        return _answer(name, judgment, timing, {"frames": _described(clip)})

    async def _score_file(
        self,
        name: str,
        judge: FileJudge,
        request: VideoRequest,
        source: Source,
        wanted: Sampling,
    ) -> VideoScore:
        """Have the judge read the file itself: which frames it takes is its own affair."""
        asked = time.monotonic()
        async with self._file(source, wanted) as path:
            ready = time.monotonic()
            judging = judge.judge_file(
                request.task_text, path, wanted.count, wanted.max_pixels, request.backend_kwargs
            )
            judgment = await _judged(name, judging)
        timing = Timing(
            decode=round((ready - asked) * 1000, 3),
            backend=round((time.monotonic() - ready) * 1000, 3),
        )
        return _answer(name, judgment, timing, {})

    @asynccontextmanager
    async def _file(self, source: Source, wanted: Sampling) -> AsyncIterator[str]:
        """A source as a file with a path, for as long as it is needed."""
        file = source.file(wanted)
        entering = asyncio.ensure_future(_in_thread(self._decoders, file.__enter__))
        try:
            path = await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it makes is cleared away when it is done.
            entering.add_done_callback(lambda made: _leave(file) if not made.exception() else None)
            raise
        try:
            yield path
        finally:
            _leave(file)


async def _in_thread(threads: Executor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    except OSError as error:  # what is the caller's fault was told where it was seen
        log.exception("a file could not be read")
        raise Unavailable(f"files cannot be read now: {error.strerror}", retry_after=1) from None


def _leave(file: AbstractContextManager[str]) -> None:
    file.__exit__(None, None, None)


def _described(clip: Clip) -> dict[str, JsonValue]:
    height, width = clip.frames[0].shape[:2]
    return {
        "indices": list(clip.indices),
        "total": clip.total,
        "fps": clip.fps,
        "height": height,
        "width": width,
    }


async def _judged(name: str, judging: Awaitable[Judgment]) -> Judgment:
    """Wait for a judgment; what the judge raises, or answers wrongly, is the backend's failure."""
    try:
        judgment = await judging
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


def _answer(
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


def _is_sound(judgment: object) -> bool:
    """Check what a type checker cannot know of somebody else's judge."""
    if not isinstance(judgment, Judgment) or not isinstance(judgment.text, str):
        return False
    score, components = judgment.score, judgment.components.values()
    in_range = score is None or (isinstance(score, int | float) and 0 <= score <= 1)
    return in_range and all(isinstance(c, int | float) and math.isfinite(c) for c in components)
