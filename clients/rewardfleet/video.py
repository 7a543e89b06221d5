"""The client of the video service."""

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from .service import BatchClient
from .transport import in_thread
from .wire.errors import InvalidRequest, RewardFleetError
from .wire.validation import validate
from .wire.video import VideoHealth, VideoRequest, VideoScore, sample_indices

#: A path that the server reads, the bytes of a video file, the bytes of JPEG or PNG images,
#: or RGB frames, `[T, H, W, 3]`, uint8.
ClipLike = str | os.PathLike[str] | bytes | Sequence[bytes] | NDArray[np.uint8]


class VideoOptions(TypedDict, total=False):
    """The options of `video_request`."""

    fps: float | None
    nframes: int
    max_pixels: int
    backend: str | None
    backend_kwargs: dict[str, JsonValue] | None


class VideoClient(BatchClient[VideoRequest, VideoScore]):
    """The client of the video service. `RewardFleet` creates it."""

    score_type = VideoScore
    has_threshold = True

    async def score(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> VideoScore:
        """Score one clip. The arguments are those of `video_request`.

        Raises:
            RewardFleetError: There is no score; see `rewardfleet.wire.errors`.
        """
        deadline = self._transport.deadline()
        request = await in_thread(lambda: video_request(task_text, clip, **options), deadline)
        return await self._score_one(request, deadline)

    async def reward(
        self, task_text: str, clip: ClipLike, **options: Unpack[VideoOptions]
    ) -> float:
        """Score one clip and return its reward: 0 or 1, or the score if `binary_reward` is False.

        The arguments are those of `video_request`.

        Raises:
            RewardFleetError: There is no reward, e.g. the judge `Abstained`, and `on_failure` is
                "raise".
        """
        try:
            score = await self.score(task_text, clip, **options)
        except RewardFleetError as error:
            return self._policy.failed(error)
        return self._policy.reward(score)

    async def health(self) -> VideoHealth:
        """Return which judges are loaded.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        return await self._transport.get("/health", VideoHealth)

    def _body_bytes(self, request: VideoRequest) -> int:
        media = [request.video_base64 or b"", *(request.frames_base64 or ())]
        rest = request.model_dump_json(exclude={"video_base64", "frames_base64"})
        return len(rest.encode()) + sum(4 * math.ceil(len(each) / 3) + 3 for each in media)


def video_request(
    task_text: str,
    clip: ClipLike,
    *,
    fps: float | None = None,
    nframes: int = 16,
    max_pixels: int = 200_704,
    backend: str | None = None,
    backend_kwargs: Mapping[str, JsonValue] | None = None,
) -> VideoRequest:
    """Build a request. Of an array, only the `nframes` frames that the judge will see are sent.

    Args:
        task_text: The instruction that the robot was given, 1 to 4096 characters.
        clip: See `ClipLike`. A path must be under a `--video-root` of the server.
        fps: Frames per second of an array or of images, above 0 and up to 1000. A video file has
            its own.
        nframes: How many frames the judge sees, 1 to 128.
        max_pixels: The most pixels (height times width) of a frame, 784 to 1605632.
        backend: The judge; None means the service's default.
        backend_kwargs: Options of the judge.

    Raises:
        InvalidRequest: A value is out of range, or the array has another shape or dtype.
    """
    given: dict[str, object] = {
        "task_text": task_text,
        "nframes": nframes,
        "max_pixels": max_pixels,
        "backend": backend,
        "backend_kwargs": dict(backend_kwargs or {}),
        "fps": fps,
    }
    if isinstance(clip, np.ndarray):
        _check_array(clip)
        # The frames that the server would sample; `nframes` out of range is refused below.
        sampled = clip[list(sample_indices(len(clip), max(nframes, 1)))]
        given["frames_base64"] = [_png(frame) for frame in sampled]
        if fps is not None and len(clip) > 1:  # the rate of what is sent
            given["fps"] = fps * max(len(sampled) - 1, 1) / (len(clip) - 1)
    elif isinstance(clip, bytes):
        given["video_base64"] = clip
    elif isinstance(clip, str | os.PathLike):
        given["video_path"] = os.fspath(clip)
    else:
        given["frames_base64"] = list(clip)
    return validate(VideoRequest, {name: each for name, each in given.items() if each is not None})


def _check_array(frames: NDArray[np.uint8]) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise InvalidRequest(
            "give frames as a uint8 array [T, H, W, 3] with T, H and W above 0; "
            f"got {frames.dtype} {list(frames.shape)}"
        )


def _png(frame: NDArray[np.uint8]) -> bytes:
    """Encode one frame as PNG, losslessly, with zlib only: row differences, fast deflate."""
    height, width, _ = frame.shape
    rows = np.empty((height, 1 + width * 3), np.uint8)
    rows[:, 0] = 2  # PNG filter "up": each row as its difference to the row above
    flat = frame.reshape(height, -1)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bit, RGB
    pixels = zlib.compress(rows.tobytes(), level=1)
    parts = _chunk(b"IHDR", header), _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(name))
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
