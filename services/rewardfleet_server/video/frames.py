"""Decode a video file or a list of images into the frames that a judge sees."""

import io
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rewardfleet.wire.errors import InvalidRequest, TooLarge
from rewardfleet.wire.video import sample_indices

from .containers import has_frame_index

# Set before OpenCV is loaded: damaged videos are reported to the caller, not on standard error.
os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

import cv2

#: The most pixels of a frame before scaling: 4096x2304, above 4K and below 8K.
MAX_SOURCE_PIXELS = 4096 * 2304
#: The most frames of a source: 16 minutes at 20 frames per second.
MAX_SOURCE_FRAMES = 20_000
#: Share of the frames in a file's index that may be missing, as in a file cut without re-encoding.
_MISSING_TOLERATED = 0.02
#: Milliseconds that the decoder may wait for the file, e.g. on a network that does not respond.
_READ_TIMEOUT_MS = 10_000

#: One frame, RGB, `[H, W, 3]`, uint8.
Frame = NDArray[np.uint8]

Image.MAX_IMAGE_PIXELS = None  # `_check_pixels` applies a limit, with an error for the caller


@dataclass(frozen=True)
class Clip:
    """The frames that a judge sees.

    Attributes:
        frames: N frames in order, each RGB, `[H, W, 3]`, uint8, all of one size. They are not
            stacked: the copy would cost a fifth of a request, and judges resize frame by frame.
        indices: The source's index of each frame, `[N]`.
        total: Number of frames of the source.
        fps: Frames per second of the source, or None if unknown.
        max_pixels: The most pixels per frame that the caller allows.
    """

    frames: tuple[Frame, ...]
    indices: tuple[int, ...]
    total: int
    fps: float | None
    max_pixels: int


def decode_video(path: str, *, count: int, max_pixels: int, stop: threading.Event) -> Clip:
    """Decode `count` evenly spread frames in one sequential pass. Blocks.

    Seeking is four to six times slower on rollout clips, because frames depend on others.

    Args:
        path: The video file.
        count: Number of frames; all of them if the video has fewer.
        max_pixels: The most pixels per frame; larger frames are scaled down.
        stop: Set when no caller waits any more; decoding ends at the next frame.

    Raises:
        InvalidRequest: The file is not a video, or cannot be decoded completely.
        TooLarge: Its frames are too large or too many.
        TimeoutError: `stop` was set.
    """
    with _opened(path) as capture:
        expected = min(max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0), MAX_SOURCE_FRAMES)
        fps = capture.get(cv2.CAP_PROP_FPS)
        indices = sample_indices(expected, count)
        frames, total = _one_pass(capture, set(indices), max_pixels, stop)
    if not total:
        raise InvalidRequest("the video has no frame that can be decoded")
    if total < expected * (1 - _MISSING_TOLERATED) and has_frame_index(path):
        raise InvalidRequest(
            f"the video is damaged: it has {expected} frames, {total} can be decoded"
        )
    if total != expected:  # many containers have no frame count, and OpenCV estimates it
        indices = sample_indices(total, count)
        with _opened(path) as capture:
            frames, _ = _one_pass(capture, set(indices), max_pixels, stop)
    if len({frame.shape for frame in frames}) != 1:
        raise InvalidRequest("the video changes its frame size; send frames of one size")
    return Clip(tuple(frames), indices, total, fps if 0 < fps <= 1000 else None, max_pixels)


def decode_images(
    images: Sequence[bytes],
    *,
    fps: float | None,
    count: int,
    max_pixels: int,
    stop: threading.Event,
) -> Clip:
    """Decode `count` evenly spread frames of a list of JPEG or PNG images. Blocks.

    Args:
        images: One per frame, in order.
        fps: Frames per second, or None if unknown.
        count: Number of frames; all of them if there are fewer images.
        max_pixels: The most pixels per frame; larger frames are scaled down.
        stop: Set when no caller waits any more; decoding ends at the next frame.

    Raises:
        InvalidRequest: One is not a JPEG or PNG image, is damaged, or has another size.
        TooLarge: They are too large.
        TimeoutError: `stop` was set.
    """
    sizes = {_image_size(image, index) for index, image in enumerate(images)}
    if len(sizes) > 1:
        examples = " and ".join(f"{width}x{height}" for width, height in sorted(sizes)[:3])
        raise InvalidRequest(f"frames_base64 differ in size ({examples}); send frames of one size")
    _check_pixels(*sizes.pop())
    indices = sample_indices(len(images), count)
    frames = []
    for index in indices:
        if stop.is_set():
            raise TimeoutError
        frames.append(_scaled(_decode_image(images[index], index), max_pixels))
    return Clip(tuple(frames), indices, len(images), fps, max_pixels)


@contextmanager
def _opened(path: str) -> Iterator[cv2.VideoCapture]:
    # One decoding thread per clip: with many clips at once that has the best throughput per core,
    # and on clips as small as rollouts it is faster even for a single one.
    options = [cv2.CAP_PROP_N_THREADS, 1, cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_TIMEOUT_MS]
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, options)
    try:
        if not capture.isOpened():
            os.close(os.dup(0))  # raises OSError if the process ran out of file descriptors
            raise InvalidRequest("the video cannot be decoded: it is damaged, truncated or empty")
        _check_pixels(
            int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        )
        yield capture
    finally:
        capture.release()


def _one_pass(
    capture: cv2.VideoCapture, wanted: set[int], max_pixels: int, stop: threading.Event
) -> tuple[list[Frame], int]:
    """Decode the complete video; return the wanted frames and the number of all frames."""
    frames = []
    index = 0
    while capture.grab():
        if stop.is_set():
            raise TimeoutError
        if index >= MAX_SOURCE_FRAMES:
            raise _too_many_frames(index + 1)
        if index in wanted:
            decoded, bgr = capture.retrieve()
            if not decoded:
                raise InvalidRequest(f"frame {index} of the video cannot be decoded")
            _check_pixels(bgr.shape[1], bgr.shape[0])  # a stream may change its frame size
            rgb = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
            frames.append(_scaled(rgb.astype(np.uint8, copy=False), max_pixels))
        index += 1
    return frames, index


def _check_png(content: bytes, index: int) -> None:
    """Check the lengths of a PNG's chunks: the decoder would allocate what they claim."""
    position = 8
    while position + 8 <= len(content):
        position += 12 + int.from_bytes(content[position : position + 4], "big")
    if position > len(content):
        raise InvalidRequest(f"frames_base64[{index}] is a damaged or truncated image")


def _image_size(content: bytes, index: int) -> tuple[int, int]:
    """Return an image's width and height from its header, without decoding pixels."""
    if content.startswith(b"\x89PNG"):
        _check_png(content, index)
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            return image.size
    except (OSError, ValueError, SyntaxError):
        raise InvalidRequest(f"frames_base64[{index}] is not a JPEG or PNG image") from None


def _decode_image(content: bytes, index: int) -> Frame:
    # OpenCV's decoder takes 0.6 of the time of Pillow's. By default it rotates images by their
    # EXIF orientation, which Pillow does not; frames are to be shown as they are stored.
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    frame = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if frame is None:
        raise InvalidRequest(f"frames_base64[{index}] is a damaged or truncated image")
    return frame.astype(np.uint8, copy=False)


def _scaled(frame: Frame, max_pixels: int) -> Frame:
    """Scale down to at most `max_pixels`, keeping the aspect ratio."""
    height, width = frame.shape[:2]
    if height * width <= max_pixels:
        return frame
    factor = math.sqrt(max_pixels / (height * width))
    # A side that would vanish gets one pixel; the other side then limits the area.
    small_width = max(1, min(math.floor(width * factor), max_pixels))
    small_height = max(1, min(math.floor(height * factor), max_pixels // small_width))
    resized = cv2.resize(frame, (small_width, small_height), interpolation=cv2.INTER_AREA)
    return resized.astype(np.uint8, copy=False)


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_SOURCE_PIXELS:
        raise TooLarge(
            f"frames of {width}x{height} pixels; at most {MAX_SOURCE_PIXELS} (4096x2304) "
            "are accepted"
        )


def _too_many_frames(count: int) -> TooLarge:
    return TooLarge(f"{count} frames or more; at most {MAX_SOURCE_FRAMES} are accepted")


#: Frames per second assumed for clips of unknown rate: LIBERO's control rate.
UNKNOWN_FPS = 20.0


def sampled_fps(clip: Clip) -> float:
    """Return the frames per second at which a clip's sampled frames play in real time.

    For every tenth frame of a video of 20 frames per second it is 2.
    """
    fps = clip.fps or UNKNOWN_FPS
    if len(clip.indices) < 2:
        return fps
    return fps * (len(clip.indices) - 1) / (clip.indices[-1] - clip.indices[0])


@contextmanager
def as_mp4(clip: Clip) -> Iterator[Path]:
    """Write a clip's frames to a temporary mp4 file (MPEG-4 part 2) for the block. Blocks."""
    height, width = clip.frames[0].shape[:2]
    descriptor, name = tempfile.mkstemp(prefix="rewardfleet-", suffix=".mp4")
    os.close(descriptor)
    path = Path(name)
    try:
        # The codec needs even sides.
        size = (width - width % 2 or 2, height - height % 2 or 2)
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(name, cv2.CAP_FFMPEG, fourcc, sampled_fps(clip), size)
        if not writer.isOpened():
            raise RuntimeError("this build of OpenCV cannot write mp4 files")
        for frame in clip.frames:
            bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
            writer.write(cv2.resize(bgr, size) if size != (width, height) else bgr)
        writer.release()
        yield path
    finally:
        path.unlink(missing_ok=True)
