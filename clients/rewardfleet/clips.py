"""What a rollout worker has in hand, as a `VideoRequest`."""

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError

from .wire.errors import InvalidRequest
from .wire.video import VideoRequest, sample_indices

#: A path that the server reads, the bytes of a video file, the bytes of JPEG or PNG pictures,
#: or frames as RGB, `[T, H, W, 3]`, uint8.
ClipLike = str | os.PathLike[str] | bytes | Sequence[bytes] | NDArray[np.uint8]


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
        task_text: What the robot was told to do.
        clip: See `ClipLike`. A path must lie under a `--video-root` of the server.
        fps: Frames a second of an array or of pictures. Files carry their own.
        nframes: How many frames the judge sees, 1 to 128.
        max_pixels: The most pixels of a frame, 784 to 1605632.
        backend: Which judge; None means the service's default.
        backend_kwargs: Options of the judge.

    Raises:
        InvalidRequest: A value is out of its range, or the array is not of this form.
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
        # As the server would; a count out of range is refused below.
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
    try:
        return VideoRequest.model_validate({k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        raise InvalidRequest(first_finding(error)) from None


def _check_array(frames: NDArray[np.uint8]) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise InvalidRequest(
            "give frames as a uint8 array [T, H, W, 3] with T, H and W above 0; "
            f"got {frames.dtype} {list(frames.shape)}"
        )


def _png(frame: NDArray[np.uint8]) -> bytes:
    """Encode one frame without loss, with nothing but zlib: row differences, fast deflate."""
    height, width, _ = frame.shape
    rows = np.empty((height, 1 + width * 3), np.uint8)
    rows[:, 0] = 2  # PNG's filter "up": each row as its difference to the one above
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


def body_bytes(request: VideoRequest) -> int:
    """Bytes of the request as JSON, give or take a hundred."""
    media = [request.video_base64 or b"", *(request.frames_base64 or ())]
    rest = request.model_dump_json(exclude={"video_base64", "frames_base64"})
    return len(rest.encode()) + sum(4 * math.ceil(len(each) / 3) + 3 for each in media)


def first_finding(error: ValidationError) -> str:
    """Say what was wrong with a request before it was sent."""
    finding = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, finding["loc"]))
    message = finding["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
