"""From a video file or a list of pictures to the frames that a judge sees."""

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

from .containers import counts_its_frames

# Set before OpenCV is loaded: broken videos are told to the caller, not to standard error.
os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

import cv2

#: Pixels of a frame as it lies in the file: 4096x2304, above 4K, below 8K.
MAX_SOURCE_PIXELS = 4096 * 2304
#: Frames of a clip: 16 minutes at 20 frames a second.
MAX_SOURCE_FRAMES = 20_000
#: Share of the frames that a file counts which may be missing, as in one cut without re-encoding.
_MISSING_TOLERATED = 0.02
#: Milliseconds for which the decoder may wait for the file, e.g. on a network that hangs.
_READ_TIMEOUT_MS = 10_000

Frame = NDArray[np.uint8]

Image.MAX_IMAGE_PIXELS = None  # `_check_pixels` is the limit, and tells it as a problem


@dataclass(frozen=True)
class Clip:
    """What a judge sees.

    Attributes:
        frames: N frames in order, each RGB, `[H, W, 3]`, uint8, all of one size. Not stacked:
            the copy would cost a fifth of a request, and judges resize frame by frame anyway.
        indices: Which frames of the source these are, `[N]`.
        total: How many frames the source has.
        fps: Frames a second of the source, or None where it does not say.
        max_pixels: The most pixels of a frame that the caller wants judged.
    """

    frames: tuple[Frame, ...]
    indices: tuple[int, ...]
    total: int
    fps: float | None
    max_pixels: int


def decode_video(path: str, *, count: int, max_pixels: int, stop: threading.Event) -> Clip:
    """Decode `count` evenly spread frames in one sequential pass. Blocks.

    Seeking would be four to six times slower on such clips: every frame depends on others.

    Args:
        stop: Set by a caller who no longer waits; decoding ends at the next frame.

    Raises:
        InvalidRequest: It is no video that can be decoded, or not wholly.
        TooLarge: Its frames are too large or too many.
        TimeoutError: `stop` was set.
    """
    with _opened(path) as capture:
        promised = min(max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0), MAX_SOURCE_FRAMES)
        fps = capture.get(cv2.CAP_PROP_FPS)
        indices = sample_indices(promised, count)
        frames, total = _one_pass(capture, set(indices), max_pixels, stop)
    if not total:
        raise InvalidRequest("the video holds no frame that can be decoded")
    if total < promised * (1 - _MISSING_TOLERATED) and counts_its_frames(path):
        raise InvalidRequest(
            f"the video is damaged: it has {promised} frames, {total} can be decoded"
        )
    if total != promised:  # many containers do not know their length, and OpenCV guesses
        indices = sample_indices(total, count)
        with _opened(path) as capture:
            frames, _ = _one_pass(capture, set(indices), max_pixels, stop)
    if len({frame.shape for frame in frames}) != 1:
        raise InvalidRequest("the video changes its frame size; send frames of one size")
    return Clip(tuple(frames), indices, total, fps if 0 < fps <= 1000 else None, max_pixels)


def decode_pictures(
    pictures: Sequence[bytes],
    *,
    fps: float | None,
    count: int,
    max_pixels: int,
    stop: threading.Event,
) -> Clip:
    """Decode `count` evenly spread ones of a list of JPEG or PNG pictures. Blocks.

    Raises:
        InvalidRequest: One is no such picture, or they differ in size.
        TooLarge: They are too large.
        TimeoutError: `stop` was set.
    """
    sizes = {_picture_size(picture, index) for index, picture in enumerate(pictures)}
    if len(sizes) > 1:
        named = " and ".join(f"{width}x{height}" for width, height in sorted(sizes)[:3])
        raise InvalidRequest(f"frames_base64 differ in size ({named}); send frames of one size")
    _check_pixels(*sizes.pop())
    wanted = sample_indices(len(pictures), count)
    frames = []
    for index in wanted:
        if stop.is_set():
            raise TimeoutError
        frames.append(_scaled(_decode_picture(pictures[index], index), max_pixels))
    return Clip(tuple(frames), wanted, len(pictures), fps, max_pixels)


@contextmanager
def _opened(path: str) -> Iterator[cv2.VideoCapture]:
    # One decoding thread a clip: with many clips at once that is the most per core, and on
    # clips as small as these it is faster even for one.
    options = [cv2.CAP_PROP_N_THREADS, 1, cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_TIMEOUT_MS]
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, options)
    try:
        if not capture.isOpened():
            os.close(os.dup(0))  # raises where it is our descriptors that ran out
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
    """Go through the whole clip; return the wanted frames and how many frames there are."""
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
            _check_pixels(bgr.shape[1], bgr.shape[0])  # a stream may change its size
            rgb = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
            frames.append(_scaled(rgb.astype(np.uint8, copy=False), max_pixels))
        index += 1
    return frames, index


def _check_png(content: bytes, index: int) -> None:
    """Refuse a chunk that claims more than there is: the decoder would make room for it."""
    position = 8
    while position + 8 <= len(content):
        position += 12 + int.from_bytes(content[position : position + 4], "big")
    if position > len(content):
        raise InvalidRequest(f"frames_base64[{index}] is a damaged or truncated picture")


def _picture_size(content: bytes, index: int) -> tuple[int, int]:
    """Read a picture's width and height from its header, before any pixel is decoded."""
    if content.startswith(b"\x89PNG"):
        _check_png(content, index)
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as picture:
            return picture.size
    except (OSError, ValueError, SyntaxError):
        raise InvalidRequest(f"frames_base64[{index}] is no JPEG or PNG picture") from None


def _decode_picture(content: bytes, index: int) -> Frame:
    # OpenCV's decoder takes 0.6 of Pillow's time. Unlike Pillow's it would turn pictures by
    # their EXIF note; a simulator's frames mean what they show.
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    frame = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if frame is None:
        raise InvalidRequest(f"frames_base64[{index}] is a damaged or truncated picture")
    return frame.astype(np.uint8, copy=False)


def _scaled(frame: Frame, max_pixels: int) -> Frame:
    """Scale down to at most `max_pixels`, keeping the aspect ratio."""
    height, width = frame.shape[:2]
    if height * width <= max_pixels:
        return frame
    factor = math.sqrt(max_pixels / (height * width))
    # A side that would vanish is kept at one pixel; the other then bounds the area.
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


#: The rate of clips that do not say theirs, in frames a second: LIBERO's control rate.
UNKNOWN_FPS = 20.0


def sampled_fps(clip: Clip) -> float:
    """Return the rate at which a clip's frames play in their true time.

    Every tenth frame of a video of 20 frames a second plays at 2.
    """
    fps = clip.fps or UNKNOWN_FPS
    if len(clip.indices) < 2:
        return fps
    return fps * (len(clip.indices) - 1) / (clip.indices[-1] - clip.indices[0])


@contextmanager
def as_mp4(clip: Clip) -> Iterator[Path]:
    """Write a clip's frames to a temporary mp4 (MPEG-4 part 2); it is gone afterwards. Blocks."""
    height, width = clip.frames[0].shape[:2]
    descriptor, name = tempfile.mkstemp(prefix="rewardfleet-", suffix=".mp4")
    os.close(descriptor)
    path = Path(name)
    try:
        # The codec wants even sides.
        size = (width - width % 2 or 2, height - height % 2 or 2)
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(name, cv2.CAP_FFMPEG, fourcc, sampled_fps(clip), size)
        if not writer.isOpened():
            raise RuntimeError("no mp4 can be written with this OpenCV")
        for frame in clip.frames:
            bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
            writer.write(cv2.resize(bgr, size) if size != (width, height) else bgr)
        writer.release()
        yield path
    finally:
        path.unlink(missing_ok=True)
