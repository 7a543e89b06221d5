"""Score a video request: find the clip, decode it, call the judge."""

import asyncio
import io
import logging
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from PIL import Image
from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.errors import (
    BackendFailed,
    InvalidRequest,
    RewardFleetError,
    TooLarge,
    Unavailable,
)
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.engine import CachePolicy, ScoringPlan
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.system.anonymous_file import AnonymousFile, spool_bytes
from rewardfleet_server.system.threads import run_in_thread

from .cache_key import cache_key, fingerprint
from .fair_threads import FairThreads, Turn
from .fetch import Fetcher
from .frames import Clip
from .judges import ClipJudge, FileJudge, Judge, Judgment, RecoveringJudge
from .judges.settings import ALIASES
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

#: Images with more pixels together take about a second of a core to decode.
_LARGE_PIXELS = 64_000_000
#: Clips whose decoder's size is remembered.
_MAX_DECODERS = 4096
#: A video file of that size takes seconds to decode.
_LARGE_VIDEO_BYTES = 16 * 2**20

#: Characters of a judge's output in an error message.
_MAX_QUOTED = 500


@dataclass
class _Reservations:
    """The reservations of small, or of large requests: units in use, and who waits, in order."""

    used: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class FrameMemoryLimiter:
    """Limits the memory of decoders and decoded frames. Requests that do not fit wait.

    It counts the most memory that a request can take, in units; up to ten are small, as for 16
    frames of an H.264 clip of 1280x720 pixels. Large requests get three quarters of the memory, so
    small ones do not wait for them. While a large request waits, small ones get the remaining
    quarter only, so it does not wait for those that come later. Small requests wait in order, and
    so do large ones.
    """

    _UNIT = 16 * 2**20
    _UNITS = 256  # 4 GiB
    _SMALL = 10

    def __init__(self) -> None:
        self._small = _Reservations()
        self._large = _Reservations()

    @classmethod
    def is_large(cls, size: int) -> bool:
        """Return whether a request for so many bytes waits with the large ones."""
        return size > cls._SMALL * cls._UNIT

    @asynccontextmanager
    async def reserve(self, frames: int, decoder: int = 0) -> AsyncIterator[Callable[[], None]]:
        """Reserve memory for the block.

        Args:
            frames: Bytes of the decoded frames.
            decoder: Bytes that are needed until the function that the context gives is called.

        Raises:
            TooLarge: It is more than the limit.
        """
        units, kept = math.ceil((frames + decoder) / self._UNIT), math.ceil(frames / self._UNIT)
        if units > self._UNITS:
            raise TooLarge(
                f"decoding takes up to {(frames + decoder) / 2**30:.1f} GiB; at most "
                f"{self._UNITS * self._UNIT / 2**30:g} GiB are available: send smaller or fewer "
                "frames, or another codec"
            )
        group = self._large if self.is_large(frames + decoder) else self._small
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.waiting.append((units, granted))
        self._grant()
        held = units

        def close_decoder() -> None:
            nonlocal held
            group.used -= held - kept
            held = kept
            self._grant()

        try:
            await granted
            yield close_decoder
        finally:
            if not granted.cancelled():
                group.used -= held
            elif (units, granted) in group.waiting:  # `_take_first` may have removed it
                group.waiting.remove((units, granted))
            self._grant()

    def _grant(self) -> None:
        large_share = self._UNITS * 3 // 4
        while self._large.waiting:
            units = self._large.waiting[0][0]
            # One that needs more than this share runs when no other large one does.
            if self._large.used + units > max(large_share, units):
                break
            if self._large.used + self._small.used + units > self._UNITS:
                break
            self._take_first(self._large)
        reserved = self._large.used
        if self._large.waiting:
            reserved = max(reserved, large_share, self._large.waiting[0][0])
        while self._small.waiting:
            if self._small.used + self._small.waiting[0][0] > self._UNITS - reserved:
                break
            self._take_first(self._small)

    @staticmethod
    def _take_first(group: _Reservations) -> None:
        units, granted = group.waiting.popleft()
        if not granted.cancelled():  # its task has not run since it was cancelled
            group.used += units
            granted.set_result(None)


class VideoScorer:
    """Scores requests with one of the loaded judges.

    Args:
        judges: The loaded judges, by name.
        default: Name of the judge for requests that name none.
        files: Opens `video_path`.
        fetcher: Fetches `video_url`.
        readers: Threads that read and hash files; separate, so that this never waits for decoding.
        decoders: Threads that decode clips, in turns.
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
        decoders: FairThreads,
        max_video_bytes: int,
    ) -> None:
        self._judges = judges
        self._default = default
        self._files = files
        self._fetcher = fetcher
        self._readers = readers
        self._decoders = decoders
        self._frame_memory = FrameMemoryLimiter()
        self._decoders_by_digest: dict[str, int] = {}
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
    ) -> ScoringPlan[VideoScore]:
        """Find the judge and the digest of the clip.

        Raises:
            InvalidRequest: The judge is not loaded or does not accept the options, the file is
                not a video, or the content does not have the SHA-256 of the request.
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
        if request.sha256 is not None and digest != source.digest_of(request.sha256.lower()):
            raise InvalidRequest(
                "sha256 is not the digest of the content: it was damaged on its way; send it again"
            )
        memory = await self._decoder_bytes(source, digest)
        policy: CachePolicy[VideoScore] | None = None
        if judge.deterministic:
            key = cache_key(name, self._fingerprints[name], digest, request)
            policy = CachePolicy((key,))
        return ScoringPlan(
            name,
            lambda _: self._score(name, request, source, digest, memory),
            policy,
            # Otherwise those that wait for memory would hold the permits of small ones.
            is_large=self._frame_memory.is_large(_frame_bytes(request) + memory)
            or _is_large(source, request.nframes),
        )

    @property
    def judge_names(self) -> list[str]:
        """The names of the loaded judges, the default one first."""
        return [self._default, *(name for name in self._judges if name != self._default)]

    def loaded_name(self, name: str) -> str | None:
        """Return the name under which a judge is loaded, or None; `name` may be an alias."""
        same = {name, ALIASES.get(name, name), *(a for a, n in ALIASES.items() if n == name)}
        return next((loaded for loaded in self._judges if loaded in same), None)

    @property
    def accepted_names(self) -> list[str]:
        """The names of the loaded judges, and their aliases."""
        names = {*self._judges, *ALIASES, *ALIASES.values()}
        return sorted(name for name in names if self.loaded_name(name) is not None)

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return the provenance that all judgments of `backend` share."""
        return dict(self._provenance[backend])

    def check_ready(self) -> None:
        """Check that no judge is down. All are loaded before the service listens.

        Raises:
            Unavailable: One of them is.
        """
        for judge in self._judges.values():
            if isinstance(judge, RecoveringJudge) and judge.outage is not None:
                raise Unavailable(judge.outage, retry_after=1)

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

    async def _decoder_bytes(self, source: Source, digest: str) -> int:
        """Return the most memory that decoding takes besides the frames."""
        if isinstance(source, ImagesSource):
            return source.decoder_bytes()  # from one header
        if digest not in self._decoders_by_digest:
            memory = await _in_thread(self._readers, source.decoder_bytes)
            if len(self._decoders_by_digest) >= _MAX_DECODERS:
                self._decoders_by_digest.clear()
            self._decoders_by_digest[digest] = memory
        return self._decoders_by_digest[digest]

    async def _score(
        self, name: str, request: VideoRequest, source: Source, digest: str, memory: int
    ) -> VideoScore:
        judge = self._judges[name]
        turn = Turn(self._decoders)
        spec = DecodeSpec(digest, request.nframes, request.max_pixels, turn, memory)
        try:
            if isinstance(judge, FileJudge):
                return await self._score_file(name, judge, request, source, spec, turn=turn)
            return await self._score_clip(name, judge, request, source, spec, turn=turn)
        finally:
            turn.set()  # if the request was cancelled, its decoding thread ends

    async def _score_clip(
        self,
        name: str,
        judge: ClipJudge,
        request: VideoRequest,
        source: Source,
        spec: DecodeSpec,
        *,
        turn: Turn,
    ) -> VideoScore:
        timing = Timing()
        queue = stage(timing, "queue")  # for memory and the first turn

        def decode() -> Clip:
            queue.stop()
            with stage(timing, "decode"):
                return source.clip(spec)

        with queue:
            async with self._frame_memory.reserve(
                _frame_bytes(request), spec.memory
            ) as close_decoder:
                clip = await _in_thread(self._decoders, partial(turn.run, decode))
                close_decoder()
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
        *,
        turn: Turn,
    ) -> VideoScore:
        """Let the judge read the file and select the frames."""
        timing = Timing()
        with stage(timing, "decode") as decoding:
            async with (
                self._frame_memory.reserve(_frame_bytes(request), spec.memory) as close_decoder,
                self._file(source, spec, turn) as path,
            ):
                close_decoder()
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
    async def _file(self, source: Source, spec: DecodeSpec, turn: Turn) -> AsyncIterator[str]:
        """Give the path of a source's video file for the block."""
        file = source.file(spec)
        entering = asyncio.ensure_future(
            _in_thread(self._decoders, partial(turn.run, file.__enter__))
        )
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


def _frame_bytes(request: VideoRequest) -> int:
    return request.nframes * request.max_pixels * 3


def _is_large(source: Source, count: int) -> bool:
    """Estimate from headers whether decoding `count` frames takes long. False if not known."""
    if isinstance(source, AnonymousSource):
        return os.fstat(source.video.fd).st_size > _LARGE_VIDEO_BYTES
    if not isinstance(source, ImagesSource):
        return False  # reading the size of a named file may block
    try:
        with Image.open(io.BytesIO(source.images[0]), formats=("JPEG", "PNG")) as image:
            width, height = image.size  # all have the same size, which is checked later
    except (OSError, ValueError, SyntaxError):
        return False  # refused when it is decoded
    return width * height * min(count, len(source.images)) > _LARGE_PIXELS


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
