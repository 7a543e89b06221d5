"""Decode a video file or a list of images into the frames that a judge sees."""

import io
import math
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import simplejpeg
from av import VideoFrame
from numpy.typing import NDArray
from PIL import Image

from rewardfleet.wire.errors import InvalidRequest, TooLarge
from rewardfleet.wire.video import sample_indices

from .video_reader import TimeRange, VideoReader, open_video

# Set before OpenCV is loaded: damaged images are reported to the caller, not on standard error.
os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")

import cv2

from .recording import Recording, small_picture

#: The most frames of a source: 16 minutes at 20 frames per second.
MAX_SOURCE_FRAMES = 20_000
#: The most pixels of a frame before scaling: 4096x2304, above 4K and below 8K.
MAX_SOURCE_PIXELS = 4096 * 2304
#: How many times as long a pixel of a JPEG or PNG image takes as one of a video.
_IMAGE_WEIGHT = 4

#: Returns the indices of the frames that a judge sees, by the numbers of all and of those.
Selection = Callable[[int, int], tuple[int, ...]]

Frame = NDArray[np.uint8]  #: one frame, RGB, `[H, W, 3]`, uint8

Image.MAX_IMAGE_PIXELS = None  # `_check_pixels` applies a limit, with an error for the caller


@dataclass(frozen=True)
class Clip:
    """The frames that a judge sees."""

    #: N frames in order, each RGB, `[H, W, 3]`, uint8, all of one size. They are not stacked: the
    #: copy would cost a fifth of a request, and judges resize frame by frame. They may be
    #: read-only: the pixels of a body, which its items may share.
    frames: tuple[Frame, ...]
    indices: tuple[int, ...]  #: the source's index of each frame, `[N]`
    total: int  #: number of frames of the source
    fps: float | None  #: frames per second of the source, or None if unknown
    max_pixels: int  #: the most pixels per frame that the caller allows


def floor_indices(total: int, count: int) -> tuple[int, ...]:
    """Return what `sample_indices` does, rounded down, as the original LIBERO client does it."""
    if total <= count:
        return tuple(range(total))
    return tuple(np.linspace(0, total - 1, count, dtype=int).tolist())


@dataclass(frozen=True)
class DecodeSpec:
    count: int  #: number of frames, evenly spread; all of them if the source has fewer
    max_pixels: int  #: the most pixels per frame; larger frames are scaled down
    select: Selection = sample_indices  #: selects the frames
    #: The part of a video file that is decoded; None for all. What `Clip` says is then that of the
    #: part.
    part: TimeRange | None = None
    #: The most bytes that the decoder may take: that of `Source.cost`; None for any.
    memory: int | None = None
    #: Set when no caller waits any more; decoding ends at the next frame.
    stop: threading.Event = field(default_factory=threading.Event)
    recording: Recording | None = None  #: looks for faults; None: all frames are judged

    def check_wanted(self) -> None:
        """Raise a TimeoutError if no caller waits any more."""
        if self.stop.is_set():
            raise TimeoutError


def decode_video(path: str, spec: DecodeSpec) -> Clip:
    """Decode frames of a video file in one sequential pass. Blocks.

    Seeking is four to six times slower on rollout clips, because frames depend on others.

    Raises:
        InvalidRequest: The file is not a video, has no frame in the part, does not decode
            completely and without errors, or takes more memory than its headers say.
        TooLarge: Its frames are too large or too many.
        TimeoutError: `stop` was set.
    """
    part = spec.part
    with _opened(path, decodes=False) as video:
        expected = video.count_frames(part, MAX_SOURCE_FRAMES + 1)
    if part and not expected:
        raise InvalidRequest("the video has no frame from {:g} s to {:g} s".format(*part))
    if expected > MAX_SOURCE_FRAMES:
        raise _too_many(expected)
    with _opened(path) as video:
        if spec.memory is not None and video.decoder_bytes > spec.memory:
            raise InvalidRequest("the video has larger frames than its headers state")
        fps = video.fps
        frames, total = _one_pass(video, spec, expected)
    if total != expected:  # packets show no frame, or the last frames are not judged
        with _opened(path) as video:
            frames, _ = _one_pass(video, replace(spec, recording=None), total)
    indices, known_fps = spec.select(total, spec.count), fps if 0 < fps <= 1000 else None
    return Clip(tuple(frames), indices, total, known_fps, spec.max_pixels)


class Cost(NamedTuple):
    memory: int  #: the most bytes besides the frames
    #: The pixels that are decoded, weighted by the time that they take: about 300 million per
    #: second and core.
    pixels: int


def video_cost(path: str, part: TimeRange | None = None) -> Cost:
    """Return what decoding takes, by the headers; see `decode_video` for errors. Blocks shortly."""
    with _opened(path, decodes=False) as video:
        frames = video.likely_frames
        if part and video.fps:
            frames = min(frames, math.ceil((part.end_s - part.start_s) * video.fps))
        return Cost(video.decoder_bytes, video.width * video.height * frames)


def images_cost(images: Sequence[bytes]) -> Cost:
    """Return what decoding images takes, by the header of the first one."""
    try:
        width, height = _image_size(images[0], 0)
    except InvalidRequest:  # which decoding reports, as it does too many pixels, and other sizes
        return Cost(0, 0)
    pixels = min(width * height, MAX_SOURCE_PIXELS)
    # One at a time: coefficients of progressive JPEG, the pixels, and a copy.
    return Cost(12 * pixels, _IMAGE_WEIGHT * pixels * len(images))


def decode_images(images: Sequence[bytes], fps: float | None, spec: DecodeSpec) -> Clip:
    """Decode frames of a list of JPEG or PNG images, one per frame, in order. Blocks.

    Raises:
        InvalidRequest: One is not a JPEG or PNG image, is damaged, or has another size.
        TooLarge: They are too large.
        TimeoutError: `stop` was set.
    """
    for index, image in enumerate(images):
        if image.startswith(b"\x89PNG"):
            _check_png(image, index)
    sizes = {_image_size(image, index) for index, image in enumerate(images)}
    if len(sizes) > 1:
        examples = " and ".join(f"{width}x{height}" for width, height in sorted(sizes)[:3])
        raise InvalidRequest(f"frames_base64 differ in size ({examples}); send frames of one size")
    _check_pixels(*sizes.pop())
    indices = spec.select(len(images), spec.count)
    frames = []
    for index in indices:
        spec.check_wanted()
        frames.append(_scaled(_decode_image(images[index], index), spec.max_pixels))
    if spec.recording and (left := spec.recording.check([*map(small_picture, frames)], indices)):
        return decode_images(images[:left], fps, replace(spec, recording=None))
    return Clip(tuple(frames), indices, len(images), fps, spec.max_pixels)


def select_frames(
    frames: NDArray[np.uint8], fps: float | None, spec: DecodeSpec, *, is_planar: bool
) -> Clip:
    """Select frames of raw ones, which are copied if they are scaled; TooLarge for large ones.

    Args:
        frames: RGB, `[T, H, W, 3]`, or `[T, 3, H, W]` if `is_planar`.
    """
    height, width = frames.shape[2:] if is_planar else frames.shape[1:3]
    _check_pixels(width, height)
    if spec.recording:  # the green one of three planes is enough
        pictures = [small_picture(frame[1] if is_planar else frame) for frame in frames]
        frames = frames[: spec.recording.check(pictures, range(len(frames)))]
    indices = spec.select(len(frames), spec.count)
    selected = (cv2.merge(tuple(frames[each])) if is_planar else frames[each] for each in indices)
    scaled = tuple(_scaled(np.asarray(each, np.uint8), spec.max_pixels) for each in selected)
    return Clip(scaled, indices, len(frames), fps, spec.max_pixels)


def _one_pass(video: VideoReader, spec: DecodeSpec, expected: int) -> tuple[list[Frame], int]:
    """Decode the video, or the part; return the wanted ones of `expected` frames, and how many."""
    wanted = set(spec.select(expected, spec.count))
    frames: list[Frame] = []
    sizes: set[tuple[int, int]] = set()
    pictures, seconds = [], []
    total = 0
    for frame in video.frames_in(spec.part) if spec.part else video.frames():
        spec.check_wanted()
        if total >= MAX_SOURCE_FRAMES:
            raise _too_many(total + 1)
        sizes.add((frame.width, frame.height))  # a stream may change it
        if len(sizes) > 1:
            raise InvalidRequest("the video changes its frame size; send frames of one size")
        _check_pixels(frame.width, frame.height)
        if total in wanted:
            frames.append(_scaled(video.rgb(frame), spec.max_pixels))
        if spec.recording:
            pictures.append(small_picture(video.gray(frame)))
            seconds += [] if frame.time is None else [frame.time]
        total += 1
    if not total:
        raise InvalidRequest("the video has no frame that can be decoded")
    left = spec.recording and spec.recording.check(pictures, range(total), *seconds)
    return frames, left or total


def _too_many(frames: int) -> TooLarge:
    return TooLarge(f"{frames} frames or more; at most {MAX_SOURCE_FRAMES} are accepted")


@contextmanager
def _opened(path: str, *, decodes: bool = True) -> Iterator[VideoReader]:
    with open_video(path, decodes=decodes) as video:
        _check_pixels(video.width, video.height)
        yield video


def _check_png(content: bytes, index: int) -> None:
    """Check a PNG's chunks: the decoder would allocate what they claim, and ignore checksums."""
    view, position, name = memoryview(content), 8, b""
    while name != b"IEND":
        length = int.from_bytes(view[position : position + 4], "big")
        name = content[position + 4 : position + 8]
        end = position + 8 + length
        checksum = int.from_bytes(view[end : end + 4], "big")
        if end + 4 > len(content) or zlib.crc32(view[position + 4 : end]) != checksum:
            raise _damaged_image(index)
        position = end + 4


def _image_size(content: bytes, index: int) -> tuple[int, int]:
    """Return an image's width and height from its header, without decoding pixels."""
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            return image.size
    except (OSError, ValueError, SyntaxError):
        raise InvalidRequest(f"frames_base64[{index}] is not a JPEG or PNG image") from None


def _decode_image(content: bytes, index: int) -> Frame:
    # Both decoders take 0.6 of the time of Pillow's. Frames are shown as they are stored: neither
    # rotates them by their EXIF orientation.
    if content.startswith(b"\xff\xd8"):
        try:  # strict: libjpeg's warnings about damaged data are errors, which OpenCV hides
            rgb: Frame = simplejpeg.decode_jpeg(content, colorspace="RGB", strict=True)
        except ValueError:
            raise _damaged_image(index) from None
        return rgb
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    frame = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if frame is None:
        raise _damaged_image(index)
    return frame.astype(np.uint8, copy=False)


def _damaged_image(index: int) -> InvalidRequest:
    return InvalidRequest(f"frames_base64[{index}] is a damaged or truncated image")


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
            f"frames of {width}x{height} pixels; at most {MAX_SOURCE_PIXELS} (4096x2304) are "
            "accepted"
        )


#: The least quantization of MPEG-4 that keeps files small: frames hardly differ from the originals.
_HIGH_QUALITY = {"qmin": "2", "qmax": "2"}
#: Frames per second assumed for clips of unknown rate: LIBERO's control rate.
UNKNOWN_FPS = 20.0


def as_mp4(clip: Clip) -> AbstractContextManager[Path]:
    """Write a clip's frames to a temporary mp4 file (MPEG-4 part 2) for the block. Blocks.

    They play in real time: every tenth frame of a video of 20 frames per second at 2 of them. It
    raises OSError, e.g. because the disk is full.
    """
    fps = clip.fps or UNKNOWN_FPS
    if len(clip.indices) > 1:
        fps = fps * (len(clip.indices) - 1) / (clip.indices[-1] - clip.indices[0])
    return _written(clip.frames, fps)


@contextmanager
def plain_copy(path: str, spec: DecodeSpec) -> Iterator[Path | None]:
    """Check a video file; give a copy with the frames that `decode_video` finds for the block.

    It is None if any decoder finds them in the file itself: all frames, upright, at a constant
    rate. The copy has all of them, scaled down to `max_pixels`. Blocks.

    Raises the errors of `decode_video` and `as_mp4`.
    """
    clip = decode_video(path, replace(spec, count=1))  # its reader may not notice damage
    with _opened(path, decodes=False) as packets, _opened(path) as video:
        is_plain = packets.is_even(clip.total) and video.is_upright()
    frames, fps = _all_frames(path, spec), clip.fps or UNKNOWN_FPS
    with nullcontext() if is_plain else _written(frames, fps) as copy:
        yield copy


def _all_frames(path: str, spec: DecodeSpec) -> Iterator[Frame]:
    with _opened(path) as video:
        for frame in video.frames():
            spec.check_wanted()
            yield _scaled(video.rgb(frame), spec.max_pixels)


@contextmanager
def _written(frames: Iterable[Frame], fps: float) -> Iterator[Path]:
    rate = Fraction(fps).limit_denominator(1000)
    with tempfile.NamedTemporaryFile(prefix="rewardfleet-", suffix=".mp4") as file:
        with av.open(file.name, "w", format="mp4") as mp4:
            stream = mp4.add_stream("mpeg4", rate=rate, options=_HIGH_QUALITY)
            stream.pix_fmt = "yuv420p"
            for index, frame in enumerate(frames):
                picture = VideoFrame.from_ndarray(frame, format="rgb24")
                if index == 0:  # sides must be even
                    stream.width = picture.width - picture.width % 2 or 2
                    stream.height = picture.height - picture.height % 2 or 2
                picture.pts, picture.time_base = index, 1 / rate
                mp4.mux(stream.encode(picture))
            mp4.mux(stream.encode(None))
        yield Path(file.name)


def decode_black() -> None:
    """Write a small black clip, and decode it, to see whether that works. Blocks."""
    black = Clip((np.zeros((224, 224, 3), np.uint8),) * 2, (0, 1), 2, None, 224 * 224)
    with as_mp4(black) as path:
        decode_video(str(path), DecodeSpec(2, black.max_pixels))
