"""The client of the video service."""

import hashlib
import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from typing_extensions import Unpack

from .service import BatchClient
from .transport import in_thread
from .wire.errors import InvalidRequest
from .wire.validation import validate
from .wire.video import VideoHealth, VideoRequest, VideoScore, sample_indices


class Tensor(Protocol):
    """A torch tensor on any device."""

    def detach(self) -> Any:
        """Return it without its gradient."""


#: RGB frames, uint8: `[T, H, W, 3]` or `[T, 3, H, W]`.
FrameArray = NDArray[np.uint8] | Tensor

#: A path that the server reads, the bytes of a video file, the bytes of JPEG or PNG images, or
#: frames, also as a list of single ones.
ClipLike = (
    str | os.PathLike[str] | bytes | Sequence[bytes] | FrameArray | Sequence[NDArray[np.uint8]]
    | Sequence[Tensor]
)  # fmt: skip


#: What is sent unless it is given, so that the score does not depend on the service's defaults.
_DEFAULTS: dict[str, Any] = {
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
        request = await in_thread(partial(video_request, task_text, clip, **options), deadline)
        del clip  # the request has its frames, encoded
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
        return await self.policy.reward_of(self.score(task_text, clip, **options))

    async def health(self) -> VideoHealth:
        """Return which judges are loaded.

        Raises:
            RewardFleetError: The request failed; see `rewardfleet.wire.errors`.
        """
        return await self._transport.call("GET", "/health", VideoHealth)

    def _media_bytes(self, request: VideoRequest) -> int:
        media = [request.video_base64 or b"", *(request.frames_base64 or ())]
        return sum(4 * math.ceil(len(each) / 3) + 3 for each in media)


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
    given: dict[str, Any] = {"task_text": task_text, **_DEFAULTS, **options}
    nframes, fps = given["nframes"], options.get("fps")
    if isinstance(clip, bytes):
        given["video_base64"] = clip
    elif isinstance(clip, str | os.PathLike):
        given["video_path"] = os.fspath(clip)
    elif _is_frames(clip):
        sampled, count = _sampled(clip, nframes)
        given["frames_base64"] = [_png(frame) for frame in sampled]
        if fps is not None and count > 1:  # the rate of what is sent
            given["fps"] = fps * max(len(sampled) - 1, 1) / (count - 1)
    else:
        given["frames_base64"] = list(clip) if isinstance(clip, Iterable) else clip
    given["sha256"] = _sha256(given)
    return validate(VideoRequest, {name: each for name, each in given.items() if each is not None})


def _sha256(given: Mapping[str, object]) -> str | None:
    """Return the SHA-256 of the content that is sent, so that the service notices damage."""
    video, images = given.get("video_base64"), given.get("frames_base64")
    digest = hashlib.sha256()
    if isinstance(video, bytes):
        digest.update(video)
    elif isinstance(images, list) and all(isinstance(image, bytes) for image in images):
        for image in images:
            digest.update(image)
    else:
        return None  # the server reads the file, or validation reports the type
    return digest.hexdigest()


def _is_frames(clip: Any) -> bool:
    """Return whether a clip is an array, a tensor, or a sequence of them, but not of files."""
    if hasattr(clip, "shape"):
        return True
    return isinstance(clip, Sequence) and len(clip) > 0 and hasattr(clip[0], "shape")


def _sampled(clip: Any, nframes: int) -> tuple[NDArray[np.uint8], int]:
    """Return the frames that the server would sample, [n, H, W, 3], and how many there are.

    Raises:
        InvalidRequest: They are of another shape or type; the message has the call that fixes it.
    """
    if hasattr(clip, "shape") and (len(clip.shape) != 4 or not len(clip)):
        is_image = len(clip.shape) == 3 and 3 in (clip.shape[0], clip.shape[2])
        fix = ": of a single frame, give frames[None]" if is_image else ""
        raise _invalid_frames(clip.dtype, clip.shape, fix)
    # `nframes` out of range is refused when the request is validated.
    indices = list(sample_indices(len(clip), max(nframes, 1)))
    if hasattr(clip, "shape"):
        frames = to_array(clip[indices])
    else:
        try:
            frames = np.stack([to_array(clip[index]) for index in indices])
        except ValueError as error:
            raise InvalidRequest(f"give frames of one size: {error}") from None
    if frames.ndim == 4 and frames.shape[3] != 3 and frames.shape[1] == 3:
        frames = frames.transpose(0, 2, 3, 1)
    if frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        has_alpha = frames.ndim == 4 and frames.shape[3] == 4
        is_list = not hasattr(clip, "shape")
        call = "[frame[..., :3] for frame in frames]" if is_list else "frames[..., :3]"
        raise _invalid_frames(frames.dtype, frames.shape, f": give {call}" if has_alpha else "")
    if frames.dtype != np.uint8:
        raise _invalid_frames(frames.dtype, frames.shape, _how_to_fix(frames, clip))
    return frames, len(clip)


def _how_to_fix(frames: NDArray[Any], clip: Any) -> str:
    """Return the call that makes frames uint8, or the range of their values if there is none."""
    if not np.issubdtype(frames.dtype, np.number) and frames.dtype != bool:
        return ""
    low, high = float(frames.min()), float(frames.max())
    name = "frames" if hasattr(clip, "shape") else "frame"
    if low >= 0 and high <= 1 and not np.issubdtype(frames.dtype, np.integer):
        scaled = f"({name} * 255)"
    elif low >= 0 and high <= 255:
        scaled = name
    elif low >= -1 and high <= 1:
        scaled = f"(({name} + 1) * 127.5)"
    else:  # also if there is a NaN
        return f" from {low:g} to {high:g}: undo their normalization"
    is_tensor = hasattr(clip, "detach") or hasattr(clip[0], "detach")
    call = f"{scaled}.round(){'.byte()' if is_tensor else '.astype(np.uint8)'}"
    return f": give {call if name == 'frames' else f'[{call} for frame in frames]'}"


def to_array(tensor: Any) -> Any:
    """Return a tensor of any device as a numpy array. An array is returned as it is."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # numpy has no such type
        tensor = tensor.float()
    return tensor.numpy()


def _invalid_frames(dtype: Any, shape: Any, fix: str) -> InvalidRequest:
    return InvalidRequest(
        "give frames as uint8 [T, H, W, 3] or [T, 3, H, W] with T, H and W above 0; "
        f"got {dtype} {list(shape)}{fix}"
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
