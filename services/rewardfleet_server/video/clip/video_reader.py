"""Decode video files with PyAV, so that FFmpeg's decoders report errors instead of hiding them."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, cast

import av
import numpy as np
from av import CodecContext, Packet, VideoCodecContext, VideoFormat, VideoFrame, VideoStream
from av.bitstream import BitStreamFilterContext
from av.codec import codecs_available
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError
from av.sidedata.sidedata import SideData
from av.video.plane import VideoPlane
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from rewardfleet.wire.errors import InvalidRequest

from .containers import count_blocks, read_mp4_header
from .decoder_memory import EDGES, bytes_per_pixel, decoder_bytes

#: Seconds that the demuxer may wait for the file, e.g. on a network that does not respond.
_READ_TIMEOUT_S = 10.0
_MP4_FORMAT = "mov,mp4,m4a,3gp,3g2,mj2"
#: No playlists, which name other files.
_DEMUXER_OPTIONS = {
    "format_whitelist": f"{_MP4_FORMAT},matroska,webm,avi",
    "protocol_whitelist": "file",
}
_AVI_FORMAT = "avi"
_ROUNDING_S = 0.005  #: by how much containers round durations
_DECODE_NOTHING = {"skip_frame": "all"}
#: Errors end decoding. By default decoders replace what they cannot decode by earlier content.
_ERROR_DETECTION = "crccheck+bitstream+buffer+explode"
#: Of VP9 with 8 bits. FFmpeg's own decoder does not notice most changed bytes.
_VP9_DECODER = "libvpx-vp9"
#: Packets of MPEG-4 up to this size may be "not coded": the frame before is repeated.
_MPEG4_NOT_CODED_BYTES = 20
#: They parse all of the parameter sets.
_METADATA_FILTERS = {"h264": "h264_metadata", "hevc": "hevc_metadata"}
#: The tangent of a degree, by which a display matrix may differ from turns by 90 degrees.
_MOST_SKEW = 0.0175
_TWO_ZEROS = b"\0\0"
_FORBIDDEN_CODES = (b"\0\0\0", b"\0\0\1", b"\0\0\2")


class TimeRange(NamedTuple):
    """The part of a video that is shown from one time on and before another one, in seconds."""

    start_s: float
    end_s: float


class VideoReader:
    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self._container = container
        self._stream = stream
        self._converter = VideoReformatter()
        #: How frames are shown, if `_decoder` is not FFmpeg's own, which would find it.
        self._matrix: bytes | None = None
        #: In pixels, as the container states them.
        self.width, self.height = stream.width, stream.height
        #: Frames per second; 0 if unknown.
        self.fps = float(stream.average_rate or stream.base_rate or 0)
        seconds = (container.duration or 0) / av.time_base
        #: The number in the container's index, or one estimated from the duration; 0 if unknown.
        self.likely_frames = stream.frames or round(seconds * self.fps)
        #: The most memory that decoding takes; see `decoder_memory`.
        self.decoder_bytes = decoder_bytes(stream.codec_context, stream.width, stream.height)

    def count_frames(self, part: TimeRange | None, limit: int) -> int:
        """Count the packets that become frames in a part, or in all.

        It takes 5% of decoding's time. Packets are checked against the headers: InvalidRequest if
        there are fewer frames, or they end earlier, than the file states. Of all, packets after
        `limit` frames are neither read nor checked.
        """
        packets = _read_packets(self._container, self._stream, None if part else limit)
        if part or len(packets.times) < limit:
            _check_packets(packets, self._container, self._stream)
        first, last = self._limits(part) if part else (-math.inf, math.inf)
        return sum(first <= time < last for time in packets.times)

    def is_even(self, total: int) -> bool:
        """Return whether each packet is one of `total` frames, which come at a constant rate."""
        found = _read_packets(self._container, self._stream, None)
        steps = np.sort(found.times) - np.linspace(0, found.last, len(found.times))
        # Times are rounded to units of the stream, which may be as long as a frame.
        is_constant = np.abs(steps).max(initial=0) <= min(1, found.last / total / 4)
        is_whole = found.read == len(found.times) == total
        return is_whole and is_constant and self._stream.frames in {0, total}

    def is_upright(self) -> bool:
        """Decode the first frame; return whether it is shown as it is stored."""
        return not (_matrix_of(next(self.frames())) or self._matrix)

    def frames_in(self, part: TimeRange) -> Iterator[VideoFrame]:
        """Decode the frames of a part, from the keyframe before it on; see `frames` for errors."""
        first, last = self._limits(part)
        start = max(self._stream.start_time or 0, math.floor(first))
        self._container.seek(start, stream=self._stream)
        for frame in self.frames(is_part=True):
            if frame.pts is not None and frame.pts >= last:
                return
            if frame.pts is not None and frame.pts >= first:
                yield frame

    def _limits(self, part: TimeRange) -> tuple[float, float]:
        """Return the times of a part in units of the stream."""
        # A frame that is shown half a frame earlier or later is at the stated time.
        slack = 0.5 / self.fps if self.fps else 0.0
        unit, offset = float(self._stream.time_base or 1), self._stream.start_time or 0
        first, last = ((seconds - slack) / unit + offset for seconds in part)
        return first, last

    def frames(self, *, is_part: bool = False) -> Iterator[VideoFrame]:
        """Decode all frames in order. No later frame takes more memory than the headers say.

        Args:
            is_part: Whether the first ones have been left out by seeking.

        Raises:
            InvalidRequest: Frames are missing or damaged.
            FFmpegError: The file cannot be read or decoded; `open_video` handles it.
        """
        decoder, own = self._decoder(), self._stream.codec_context
        most_bits, prefix = 8 * bytes_per_pixel(own), _nal_prefix(decoder)
        read = shown = decoded = 0
        first: int | None = None
        latest = -math.inf
        for packet in self._container.demux(self._stream):
            if packet.size:
                read += 1
                first = packet.pts if first is None else first
                if read == 1 and decoder is not own:
                    self._matrix = next(map(_matrix_of, own.decode(packet)), None)
                shown += _must_be_shown(packet, decoder.name, first)
                if prefix and not _has_valid_nal_units(bytes(packet), prefix):
                    raise _damaged_frame(decoded)
            for frame in decoder.decode(packet):
                if frame.is_corrupt:
                    raise _damaged_frame(decoded)
                if frame.format.padded_bits_per_pixel > most_bits:
                    raise InvalidRequest("the video has another pixel format than it states")
                # With B-frames, files that were converted from avi have other times.
                if frame.pts is not None and not decoder.has_b_frames:
                    if frame.pts < latest:
                        reason = "is shown before the one that precedes it"
                        raise InvalidRequest(f"the video is damaged: frame {decoded} {reason}")
                    latest = frame.pts
                yield frame
                decoded += 1
        listed = 0 if is_part else len(self._stream.index_entries)
        missing = max(listed - read, shown - decoded)
        if missing > 0:
            raise InvalidRequest(
                f"the video is damaged: it has {decoded + missing} frames, {decoded} can be decoded"
            )

    def rgb(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Return a frame as it is to be shown, RGB, `[H, W, 3]`."""
        # By default there are as many threads as cores, which wait for each other.
        converted = self._converter.reformat(
            frame, format="rgb24", interpolation=Interpolation.BICUBIC, threads=1
        )
        rgb = converted.to_ndarray().astype(np.uint8, copy=False)
        matrix = _matrix_of(frame) or self._matrix
        return rgb if matrix is None else _as_shown(rgb, matrix)

    def gray(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Return how bright the pixels of a frame are, as it is stored, `[H, W]`."""
        if not _has_byte_luma(frame.format.name):
            return frame.to_ndarray(format="gray").astype(np.uint8, copy=False)
        luma = VideoPlane(frame, 0)
        return np.frombuffer(memoryview(luma), np.uint8).reshape(luma.height, -1)[:, : luma.width]

    def _decoder(self) -> VideoCodecContext:
        decoder = self._stream.codec_context
        eight_bits = decoder.format is not None and decoder.format.components[0].bits == 8
        has_alpha = "alpha_mode" in self._stream.metadata  # which that decoder would decode
        is_plain = (decoder.name, eight_bits, has_alpha) == ("vp9", True, False)
        if is_plain and _VP9_DECODER in codecs_available:
            header = decoder.extradata
            decoder = cast("VideoCodecContext", CodecContext.create(_VP9_DECODER, "r"))
            decoder.extradata = header
        # One decoding thread per clip: with many clips at once that has the best throughput per
        # core, and on clips as small as rollouts it is faster even for a single one.
        decoder.thread_type, decoder.thread_count = "NONE", 1
        # The decoder of MPEG-4 counts a buffer for 280 rows.
        most = (self.width + 2 * EDGES) * (self.height + 3 * EDGES)
        decoder.options = {"err_detect": _ERROR_DETECTION, "max_pixels": str(most)}
        return decoder


@contextmanager
def open_video(path: str, *, decodes: bool = True) -> Iterator[VideoReader]:
    """Open a video file for the block; InvalidRequest, also within it, if it cannot be decoded.

    Args:
        decodes: Whether pictures are decoded, which tells how they are to be shown. Opening a file
            decodes the first ones. Without them, it takes no memory and a millisecond.
    """
    try:
        with _opened(path, **({} if decodes else _DECODE_NOTHING)) as container:
            stream = _best_stream(container)
            if stream.codec_context is None:
                raise InvalidRequest("the video cannot be decoded: its codec is not known")
            if decodes:
                _check_parameter_sets(stream)
            yield VideoReader(container, stream)
    except FFmpegError as error:
        os.close(os.dup(0))  # raises OSError if the process ran out of file descriptors
        raise InvalidRequest(
            "the video cannot be decoded: it is damaged, truncated or empty"
        ) from error


def _opened(path: str, **options: str) -> InputContainer:
    return av.open(
        path,
        options={**_DEMUXER_OPTIONS, **options},
        timeout=_READ_TIMEOUT_S,
        metadata_errors="replace",  # titles in another encoding than UTF-8 are not read
    )


def _best_stream(container: InputContainer) -> VideoStream:
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream):
        raise InvalidRequest("the video cannot be decoded: the file has no video stream")
    return stream


@dataclass
class _Packets:
    """What the demuxer found in a file. Times are in units of the video stream."""

    read: int = 0  #: of the video stream
    times: list[int] = field(default_factory=list)  #: when each frame is shown
    last: int = 0  #: when the last frame is shown
    end: int = 0  #: when it is no longer shown
    total: int = 0  #: of the durations of the frames
    #: Of all streams: when the others end, in seconds; the bytes; where they are in the file.
    other_end: float = 0.0
    size: int = 0
    positions: set[int | None] = field(default_factory=set)


def _read_packets(container: InputContainer, stream: VideoStream, limit: int | None) -> _Packets:
    found = _Packets()
    for packet in container.demux():
        time, duration = packet.dts if packet.pts is None else packet.pts, packet.duration or 0
        if not packet.size:
            continue
        if packet.is_corrupt:  # the demuxer found fewer bytes than the container states
            raise InvalidRequest("the video is truncated: a frame is incomplete")
        found.size += packet.size
        found.positions.add(packet.pos)
        if time is None:  # before the start of a Matroska file, as a frame that is not shown
            continue
        if packet.stream_index != stream.index:
            end = float((time + duration) * packet.time_base)
            found.other_end = max(found.other_end, end)
            continue
        found.read += 1
        if not packet.is_discard:  # else outside of the part that an edit list shows
            found.times.append(time)
            if not found.times[1:] or time > found.last:
                found.last, found.end = time, time + duration
            found.total += duration
            if len(found.times) == limit:
                break
    return found


def _check_packets(found: _Packets, container: InputContainer, stream: VideoStream) -> None:
    """Check that a file has the packets that it states, up to the time that it states."""
    path, listed = container.name, len(stream.index_entries)
    stated = (container.duration or 0) / av.time_base
    is_complete = listed <= found.read
    if container.format.name == _MP4_FORMAT:
        seconds, fragment_bytes = read_mp4_header(path)
        stated = max(stated, seconds)  # FFmpeg takes the length of the edit list
        is_complete &= fragment_bytes <= found.size
        if stream.frames > listed or found.read > len(found.times):
            _check_without_edits(path)
    elif container.format.name != _AVI_FORMAT:
        is_complete &= count_blocks(path) <= len(found.positions)
    if not is_complete:
        raise InvalidRequest("the video is damaged: not all of its frames can be found")
    if found.times and stated:
        _check_duration(found, stream, stated)


def _check_duration(found: _Packets, stream: VideoStream, stated: float) -> None:
    """Check that frames are shown for as long as the file states, in seconds."""
    unit = float(stream.time_base or 1)
    shown, first, last = len(found.times), min(found.times), found.last
    if stream.frames and stream.container.format.name == _MP4_FORMAT:
        # Each frame states when the next one is decoded. With B-frames and a variable rate, that is
        # not how long it is shown. An empty part before the first one may count.
        least, most = (unit * each for each in sorted((found.total, found.end - first)))
        most += unit * max(first, 0)
        is_trimmed = stated < least / shown * (stream.frames - 0.5)
    else:
        least, most = 0.0, unit * max(found.end, last + (last - first) / max(shown - 1, 1))
        is_trimmed = True
    # A cut is not at the boundary of two frames.
    slack = (1.5 if is_trimmed else 0.5) * min(most, stated) / shown + _ROUNDING_S
    if not least - slack <= stated <= max(most, found.other_end) + slack:
        raise InvalidRequest(
            f"the video is damaged: it states {stated:.2f} s, and its frames last {most:.2f} s"
        )


def _check_without_edits(path: str) -> None:
    """Check that an edit list is the reason why an mp4 file shows fewer frames than it states.

    FFmpeg leaves out frames that an index with a damaged size or time does not locate, and those of
    a fragment that is not after the one before.
    """
    with _opened(path, ignore_editlist="1", **_DECODE_NOTHING) as container:
        stream = _best_stream(container)
        is_discarded = any(packet.is_discard for packet in container.demux(stream))
        entries, duration = stream.index_entries, stream.duration or 0
        last = entries[-1].timestamp if entries else 0
        # Some writers leave out frames before the first keyframe, of which there are up to four.
        ends_late = 0 < duration < last and (last - duration) * len(entries) > 4 * last
        if len(entries) < stream.frames or is_discarded or ends_late:
            raise InvalidRequest("the video is damaged: its index does not locate all frames")


def _check_parameter_sets(stream: VideoStream) -> None:
    """Check that the parameter sets of H.264 and H.265 have no other content than they may have.

    Decoders ignore what follows their last field, which damage may have moved.
    """
    if _nal_prefix(stream.codec_context):
        try:
            BitStreamFilterContext(_METADATA_FILTERS[stream.codec_context.name], stream)
        except InvalidDataError:
            raise InvalidRequest("the video is damaged: its parameter sets are invalid") from None


@cache
def _has_byte_luma(name: str) -> bool:
    pixels = VideoFormat(name)
    return pixels.is_planar and pixels.components[0].bits <= 8


def _matrix_of(frame: VideoFrame) -> bytes | None:
    """Return a frame's display matrix, nine numbers of 32 bits, or None."""
    found = cast("SideData | None", frame.side_data.get("DISPLAYMATRIX"))
    return None if found is None else bytes(found)


def _as_shown(rgb: NDArray[np.uint8], matrix: bytes) -> NDArray[np.uint8]:
    """Turn and mirror a frame by its display matrix, as players do; like them, do not scale it.

    By the matrix, the pixel at x and y is shown at (ax + cy, bx + dy).
    """
    a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].astype(float)
    is_upright = abs(a) > abs(b)
    across, down, *others = (a, d, b, c) if is_upright else (c, b, a, d)
    if not max(map(abs, others)) < _MOST_SKEW * min(abs(across), abs(down)):
        raise InvalidRequest("the video is damaged: its display matrix is not a rotation")
    shown = rgb if is_upright else rgb.swapaxes(0, 1)
    rows, columns = (-1 if each < 0 else 1 for each in (down, across))
    return np.ascontiguousarray(shown[::rows, ::columns])


def _damaged_frame(index: int) -> InvalidRequest:
    return InvalidRequest(f"the video is damaged: frame {index} cannot be decoded without errors")


def _must_be_shown(packet: "Packet[VideoStream]", codec: str, first: int | None) -> bool:
    """Return whether a packet must become a frame. There are few exceptions."""
    if packet.is_discard or packet.pts is packet.dts is None:
        return False  # outside the part that an edit list shows, or before the start of Matroska
    if packet.pts is not None and first is not None and packet.pts < first:
        # Frames before the first keyframe depend on frames that the file does not have, as in a
        # file cut without re-encoding; decoders leave them out.
        return False
    if codec == "mpeg4":
        return packet.size > _MPEG4_NOT_CODED_BYTES
    return codec != "vp8" or bool(bytes(packet)[0] & 0x10)  # VP8: the bit "show_frame"


def _nal_prefix(decoder: VideoCodecContext) -> int:
    """Return the bytes of the length before each NAL unit of H.264 and H.265; 0 if none."""
    header = decoder.extradata or b""
    position = {"h264": 4, "hevc": 21}.get(decoder.name)
    if position is None or len(header) <= position or header[0] != 1:
        return 0  # another codec, or NAL units separated by start codes, as in avi files
    return (header[position] & 3) + 1


def _has_valid_nal_units(content: bytes, prefix: int) -> bool:
    """Check that NAL units fill a packet and have no forbidden bytes, as zeroed content has.

    Three zero bytes, or two and a 1 or 2, do not occur in a NAL unit (ITU-T H.264, 7.4.1). Some
    encoders add up to three zero bytes at its end. FFmpeg checks neither.
    """
    position = 0
    while position < len(content):
        start = position + prefix
        position = start + int.from_bytes(content[position:start], "big")
        if start > len(content) or position > len(content):
            return False
        end = position - 3 if position - start > 3 else start
        at = content.find(_TWO_ZEROS, start, end)  # most packets have none
        if at >= 0 and any(content.find(code, at, end) >= 0 for code in _FORBIDDEN_CODES):
            return False
    return True
