"""The client of the video service."""

import asyncio
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, Unpack

from pydantic import JsonValue

from .http.transport import MAX_BATCH_BYTES
from .service import BatchClient, reward_of, with_options
from .wire.digest import content_sha256
from .wire.errors import DeadlineExceeded, Forbidden, InvalidRequest, NotFound
from .wire.validation import validate
from .wire.video import VideoHealth, VideoRequest, VideoScore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Tensor(Protocol):
    """A torch tensor on any device."""

    def detach(self) -> Any:
        """Return it without its gradient."""

    def __len__(self) -> int:
        """Return its first dimension."""


#: RGB frames, uint8: `[T, H, W, 3]` or `[T, 3, H, W]`.
FrameArray: TypeAlias = "NDArray[np.uint8] | Tensor"

#: A path that the server reads, the bytes of a video file, those of images, or frames.
ClipLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | Sequence[bytes] | FrameArray | Sequence[FrameArray]"
)


#: What is sent unless it is given, so that the score does not depend on the service's defaults.
DEFAULTS: dict[str, Any] = {
    name: VideoRequest.model_fields[name].get_default(call_default_factory=True)
    for name in ("nframes", "max_pixels", "backend_kwargs")
}


class VideoOptions(TypedDict, total=False):
    """The options of `video_request`."""

    fps: float | None
    nframes: int
    max_pixels: int
    backend: str | None
    backend_kwargs: Mapping[str, JsonValue] | None
    run: str | None
    step: int | None
    uid: str | None


@with_options
def video_request(task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]) -> VideoRequest:
    """Build a request. Of an array, only the `nframes` frames that the judge will see are sent.

    Args:
        task_text: The instruction that the robot was given, 1 to 4096 characters.
        clip: See `ClipLike`. A path must be under a `--video-root` of the server.
        options: `fps`, `nframes`, `max_pixels`, `backend` and `backend_kwargs`; see `VideoRequest`.
            `fps` is the rate of an array or of images.

    Raises:
        InvalidRequest: A value is out of range, or the array has another shape or dtype.
    """
    given: dict[str, Any] = {"task_text": task_text, **DEFAULTS, **options}
    nframes, fps = given["nframes"], options.get("fps")
    if isinstance(clip, bytes):
        given["video_base64"] = clip
    elif isinstance(clip, str | os.PathLike):
        given["video_path"] = os.fspath(clip)
    elif _is_frames(clip):
        from .arrays import encode_png, raw_frames, sampled  # noqa: PLC0415 - imports numpy

        frames, order = sampled(clip, nframes)
        if len(frames) * frames[0].nbytes <= MAX_BATCH_BYTES:
            given["frames"] = raw_frames(frames, order)
        else:  # as PNG, they may fit into a body
            axes = (0, 1, 2) if order == "THWC" else (1, 2, 0)
            given["frames_base64"] = [encode_png(frame.transpose(axes)) for frame in frames]
        if fps is not None and len(clip) > 1:  # the rate of what is sent
            given["fps"] = fps * max(len(frames) - 1, 1) / (len(clip) - 1)
    elif isinstance(clip, Iterable):
        given["frames_base64"] = list(clip)
    else:
        accepted = "a path, the bytes of a video file, frames, or a list of images"
        raise InvalidRequest(f"clip: give {accepted}, not {type(clip).__name__}")
    fields = {name: each for name, each in given.items() if each is not None}
    request = validate(VideoRequest, fields)
    sha256 = content_sha256(request)  # so that the service notices damage of what is sent
    return request if sha256 is None else request.model_copy(update={"sha256": sha256})


class VideoClient(BatchClient[VideoRequest, VideoScore]):
    """The client of the video service. `RewardFleet` creates it."""

    request_type = VideoRequest
    score_type = VideoScore
    has_run_label = True
    has_threshold = True

    @with_options
    async def score(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> VideoScore:
        """Score one clip. The arguments are those of `video_request`.

        Raises:
            RewardFleetError: There is no score; see `rewardfleet.wire.errors`.
        """
        deadline = self._transport.deadline()
        try:
            async with asyncio.timeout_at(deadline):
                request = await asyncio.to_thread(video_request, task_text, clip, **options)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request was encoded") from None
        del clip  # the request has its frames, encoded
        return await self._score_one(request, deadline)

    reward = reward_of(video_request)

    async def _score_one(self, request: VideoRequest, deadline: float | None = None) -> VideoScore:
        try:
            return await super()._score_one(request, deadline)
        except (InvalidRequest, Forbidden, NotFound) as error:
            path = request.video_path
            if path is None or not await asyncio.to_thread(Path(path).is_file):
                raise
            raise type(error)(
                f"{error.detail}; this machine has that file: to send its bytes, give "
                f"Path({path!r}).read_bytes()",
                request_id=error.request_id,
            ) from None

    async def health(self) -> VideoHealth:
        """Return which judges are loaded.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        return await self._transport.call("GET", "/health", VideoHealth)

    def _media_bytes(self, request: VideoRequest) -> int:
        if request.frames is not None:
            return request.frames.size
        return sum(4 * math.ceil(len(each) / 3) + 3 for each in request.content)


def _is_frames(clip: Any) -> bool:
    """Return whether a clip is an array, a tensor, or a sequence of them, but not of files."""
    return hasattr(clip[0] if isinstance(clip, Sequence) and len(clip) else clip, "shape")
