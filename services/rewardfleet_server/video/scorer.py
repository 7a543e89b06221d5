"""Score a video request: find the clip, decode it, call the judge."""

import hashlib
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import TypeVar

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.causes import VideoCause, success_threshold
from rewardfleet.wire.errors import (
    BackendFailed,
    ErrorKind,
    Forbidden,
    InvalidRequest,
    NotFound,
    RewardFleetError,
    Unavailable,
)
from rewardfleet.wire.score import Status, Timing
from rewardfleet.wire.video import MAX_SECONDS, VideoRequest, VideoScore, sample_indices
from rewardfleet_server.observe.score_log import Seen
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import CachePolicy, ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile, spool_bytes
from rewardfleet_server.system.threads import lower_thread_priority, run_in_thread, usable_cores

from .clip.decoding_limit import DecodingLimit, is_large
from .clip.fetch import Fetcher
from .clip.frames import Clip, Cost, DecodeSpec, Selection, decode_black, floor_indices
from .clip.recording import Recording
from .clip.sources import (
    AnonymousSource,
    FramesSource,
    ImagesSource,
    PathSource,
    Source,
    VideoFiles,
)
from .clip.video_reader import TimeRange
from .judges import FileJudge, Judge, Judgment
from .judges.calibration import JudgeCalibration
from .judges.settings import ALIASES
from .rlinf_api import Refusals
from .settings import VideoSettings

T = TypeVar("T")

log = logging.getLogger(__name__)

#: What to do about a `video_path` that is refused. Logs do not show paths outside of the folders.
_PATH_ADVICE = {
    ErrorKind.FORBIDDEN: "a video_path may not be read; --video-root names the folder that a "
    "trainer writes to (temp_video_dir; by default that of the system, such as /tmp), and the "
    "service must run as a user that may read the trainer's files",
    ErrorKind.NOT_FOUND: "a video_path does not exist here; temp_video_dir must be a folder below "
    "--video-root that the trainer and this service both see",
}
_MAX_COSTS = 4096  #: clips whose cost is remembered
_FAULTY = "No judge has seen the clip: `suspicions` has the faults of its recording."
_MAX_QUOTED = 500  #: characters of a judge's output in an error message


class VideoScorer:
    """Scores requests with one of the loaded judges.

    Args:
        judges: The loaded judges by name, the default one first.
        calibration: Of one of the judges; ValueError if it is of another one.
    """

    def __init__(
        self,
        settings: VideoSettings,
        judges: Mapping[str, Judge],
        refusals: Refusals,
        calibration: JudgeCalibration | None,
    ) -> None:
        self._judges = judges
        self.judge_names = [*judges]  #: those of the loaded judges, the default one first
        self._faults = settings.recording_faults
        self._max_video_bytes = settings.max_body_mb * 2**20  # from any source
        self._files = VideoFiles(settings.video_root, max_bytes=self._max_video_bytes)
        self._fetcher = Fetcher(settings.video_url_host, max_bytes=self._max_video_bytes)
        # Reading and hashing files never waits for decoding.
        self._readers = ThreadPoolExecutor(2, "read", lower_thread_priority)
        #: For small clips, and for large ones: the system shares the cores.
        self.decode_threads = max(2, usable_cores())
        decoders = 2 * self.decode_threads
        self._decoders = ThreadPoolExecutor(decoders, "decode", lower_thread_priority)
        self._decoding = DecodingLimit(self.decode_threads)
        self._costs: dict[tuple[str, TimeRange | None], Cost] = {}
        pairs = [(each, pair) for pair in ALIASES.items() for each in judges if each in pair]
        aliases = {name: loaded for loaded, pair in pairs for name in pair}
        #: The names under which judges are loaded, by their names and aliases.
        self.loaded_names = {**aliases, **dict(zip(judges, judges, strict=True))}
        self._refusals = refusals
        self._select: Selection = floor_indices if settings.profile else sample_indices
        self._selection = {"frame_selection": "floor"} if settings.profile else {}
        self.calibrations: dict[str, JudgeCalibration] = {}  #: by the judge's name
        if calibration is not None:
            name = self.loaded_names.get(calibration.backend)
            if name is None:
                raise ValueError(
                    f"--calibration is of the judge {calibration.backend!r:.60}, which is not "
                    f"loaded; loaded: {', '.join(sorted(judges))}"
                )
            if judges[name].outage is None:  # else it is not known yet what judges
                calibration.check_judge(self.provenance(name))
            self.calibrations[name] = calibration

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Warm the judges up; at the end, release their resources, threads and connections."""
        async with AsyncExitStack() as stack:
            stack.callback(self._readers.shutdown, wait=False, cancel_futures=True)
            stack.callback(self._decoders.shutdown, wait=False, cancel_futures=True)
            stack.push_async_callback(self._fetcher.aclose)
            for judge in self._judges.values():
                await stack.enter_async_context(judge.lifespan())
            yield

    async def plan(
        self, request: VideoRequest, upload: AnonymousFile | None = None
    ) -> ScoringPlan[VideoScore]:
        """Find the judge and the digest of the clip.

        Raises:
            InvalidRequest: The judge is not loaded or does not accept the options, the file is
                not a video, or the content does not have the SHA-256 of the request.
            RewardFleetError: See `VideoFiles.open` and `Fetcher.fetch`.
        """
        requested = request.backend or self.judge_names[0]
        name = self.loaded_names.get(requested)
        if name is None:
            shown, loaded = requested[:60], ", ".join(sorted(self._judges))
            unknown = InvalidRequest(
                f"backend {shown!r} is not loaded; loaded: {loaded}; load it with --backend, "
                "or send null, as by `backend: null` in a trainer's configuration"
            )
            raise self._refusals.of(f"backend {shown}", unknown)
        judge, provenance = self._judges[name], self.provenance(name)
        cause = f"backend_kwargs of {name}"
        try:
            judge.check_options(request.backend_kwargs)
            if (calibration := self.calibrations.get(name)) is not None:
                cause = f"calibration of {name}"
                calibration.check_judge(provenance)
                calibration.check_request(request)
        except InvalidRequest as error:
            raise self._refusals.of(cause, error) from None
        except ValueError as error:  # since the start, its endpoint was restarted
            raise BackendFailed(str(error)) from None
        source = await self._source(request, upload)
        sha256 = source.cached_sha256()
        if sha256 is None:
            try:
                sha256 = await _in_thread(self._readers, source.sha256)
            except (Forbidden, NotFound) as error:
                raise self._refusals.of(error.kind, error, _PATH_ADVICE[error.kind]) from None
        if request.sha256 is not None and sha256 != request.sha256.lower():
            raise InvalidRequest(
                "sha256 is not the digest of the content: it was damaged on its way; send it again"
            )
        part, digest = _part_of(request), source.digest_of(sha256)
        cost = await self._cost(source, digest, part)
        policy: CachePolicy[VideoScore] | None = None
        if judge.deterministic:  # the key is everything that the judgment depends on
            asked = (digest, request.task_text, request.nframes, request.max_pixels, *(part or ()))
            judged = [name, _digest(provenance), self._faults, *asked, request.backend_kwargs]
            policy = CachePolicy((_digest(judged),))
        is_sent = request.video_path is None and request.video_url is None
        seen = Seen(sha256 if is_sent else None)

        async def compute(_: object) -> VideoScore:
            score = await self._score(name, request, source, sha256, cost=cost, seen=seen)
            if self.provenance(name) != provenance:  # its key in the cache would be wrong
                raise Unavailable(f"{name} depends on something else now; send this again")
            return score

        return ScoringPlan(
            name,
            compute,
            policy,
            # Otherwise those that wait for memory would hold the permits of small ones.
            is_large=is_large(_frame_bytes(request) + cost.memory, cost.pixels),
            seen=seen,
        )

    def provenance(self, backend: str) -> dict[str, JsonValue]:
        """Return the provenance that all judgments of `backend` share now."""
        calibration = self.calibrations.get(backend)
        return {
            "service": f"rewardfleet {__version__}",
            **self._judges[backend].provenance,
            **self._selection,
            **({} if calibration is None else {"calibration": calibration.provenance}),
        }

    async def probe(self) -> None:
        """Decode a clip; raise if that fails. Judges say themselves whether they work."""
        await _in_thread(self._decoders, decode_black)

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
        if request.frames is not None:
            return FramesSource(request.frames.pixels, request.fps, request.frames)
        return ImagesSource(request.frames_base64 or [], request.fps)

    async def _cost(self, source: Source, digest: str, part: TimeRange | None) -> Cost:
        if source.has_quick_cost:
            return source.cost(part)
        key = digest, part
        if key not in self._costs:
            cost = await _in_thread(self._readers, partial(source.cost, part))
            if len(self._costs) >= _MAX_COSTS:
                self._costs.clear()
            self._costs[key] = cost
        return self._costs[key]

    async def _score(
        self,
        name: str,
        request: VideoRequest,
        source: Source,
        sha256: str,
        *,
        cost: Cost,
        seen: Seen,
    ) -> VideoScore:
        judge, timing, stop = self._judges[name], Timing(), threading.Event()
        calibration = self.calibrations.get(name)
        recording = Recording(self._faults == "trim")
        frames, part = (request.nframes, request.max_pixels), _part_of(request)
        spec = DecodeSpec(*frames, self._select, part, cost.memory, stop, recording)
        provenance: dict[str, JsonValue] = {}
        queue = stage(timing, "queue")  # for a decoder and memory
        is_decoded = source.is_decoded(spec) and not isinstance(judge, FileJudge)

        async def decode(work: Callable[[], T]) -> T:
            def decoding() -> T:
                queue.stop()
                with stage(timing, "decode"):
                    return work()

            return await _in_thread(self._readers if is_decoded else self._decoders, decoding)

        try:
            async with AsyncExitStack() as stack:
                with queue:
                    close_decoder = await stack.enter_async_context(
                        nullcontext(lambda: None)
                        if is_decoded
                        else self._decoding.reserve(_frame_bytes(request), *cost)
                    )
                    if isinstance(judge, FileJudge):  # it reads the file and selects the frames
                        # If this is cancelled, the file ends with its thread's work.
                        file = source.file(spec, sha256)
                        path = await decode(file.__enter__)
                        stack.push(file)
                        judging = partial(judge.judge_file, request.task_text, path, *frames)
                    else:
                        clip = await decode(partial(source.clip, spec, sha256))
                        provenance["frames"] = _frame_metadata(clip)
                        seen.frames = clip.frames
                        if calibration is not None:
                            calibration.check_camera(clip)
                        judging = partial(judge.judge, request.task_text, clip)
                close_decoder()
                if self._faults == "judge" or recording.is_trimmed or not recording.faults:
                    with stage(timing, "backend"):
                        judgment = await _checked(name, judging(request.backend_kwargs))
                    if calibration is not None:
                        judgment = calibration.calibrated(judgment, request.task_text)
                else:
                    judgment = Judgment(None, _FAULTY, cause=VideoCause.RECORDING_FAULT)
        finally:
            stop.set()  # if the request was cancelled, its decoding ends
        if judgment.score is None:
            cause: VideoCause | None = judgment.cause or VideoCause.NO_VERDICT
        else:
            said = {"calibration": calibration and calibration.provenance}
            is_low = judgment.score < success_threshold(said)
            cause = VideoCause.JUDGE_SAYS_NO if is_low else None
        end = "; the clip was judged up to it" if recording.is_trimmed else ""
        at = {f"{e.kind.split(':')[0]}_frame": float(e.frame) for e in recording.faults[::-1]}
        return VideoScore(
            score=judgment.score,
            status=Status.ABSTAINED if judgment.score is None else Status.OK,
            components={} if judgment.score is None else {"score": judgment.score},
            details={**judgment.details, **at},
            backend=name,
            cause=cause,
            timing_ms=timing,
            provenance={**provenance, **judgment.provenance},
            model_output=judgment.text,
            suspicions=[f"frame {each.frame}: {each.kind}{end}" for each in recording.faults],
            curve=judgment.curve,
            references=list(judgment.references),
        )


#: Made once: `json.dumps` makes one for each call that has options.
_encode = json.JSONEncoder(sort_keys=True).encode


def _digest(value: object) -> str:
    return hashlib.sha256(_encode(value).encode()).hexdigest()


def _part_of(request: VideoRequest) -> TimeRange | None:
    """Return the part of a video file that is judged; None for all of it."""
    if request.start_s is None and request.end_s is None:
        return None
    return TimeRange(request.start_s or 0.0, request.end_s or MAX_SECONDS)


def _frame_bytes(request: VideoRequest) -> int:
    return request.nframes * request.max_pixels * 3


async def _in_thread(threads: Executor, work: Callable[[], T]) -> T:
    try:
        return await run_in_thread(threads, work)
    except OSError as error:  # invalid input raises a RewardFleetError instead
        log.exception("a file could not be read")
        raise Unavailable(f"files cannot be read now: {error.strerror}", retry_after=1) from None


def _frame_metadata(clip: Clip) -> JsonValue:
    height, width = clip.frames[0].shape[:2]
    size: dict[str, JsonValue] = {"height": height, "width": width}
    return {"indices": [*clip.indices], "total": clip.total, "fps": clip.fps, **size}


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
            "[0, 1] or None, a text, and finite details"
        )
    return judgment


def _is_valid(judgment: object) -> bool:
    """Return whether a judgment is valid; a judge that a user provides is not type-checked."""
    if not isinstance(judgment, Judgment) or not isinstance(judgment.text, str):
        return False
    score, details = judgment.score, judgment.details.values()
    in_range = score is None or (isinstance(score, int | float) and 0 <= score <= 1)
    return in_range and all(isinstance(n, int | float) and math.isfinite(n) for n in details)
