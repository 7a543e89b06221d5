"""Decode video files with PyAV, so that FFmpeg's decoders report errors instead of hiding them."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, cast

import av
import numpy as np
from av import CodecContext, Packet, VideoCodecContext, VideoFrame, VideoStream
from av.bitstream import BitStreamFilterContext
from av.codec import codecs_available
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from rewardfleet.wire.errors import InvalidRequest

from .containers import stated_frame_sizes
from .decoder_memory import EDGES, bytes_per_pixel, decoder_bytes

#: Seconds that the demuxer may wait for the file, e.g. on a network that does not respond.
_READ_TIMEOUT_S = 10.0
_MP4_FORMAT = "mov,mp4,m4a,3gp,3g2,mj2"
#: No playlists, which name other files.
_DEMUXER_OPTIONS = {
    "format_whitelist": f"{_MP4_FORMAT},matroska,webm,avi",
    "protocol_whitelist": "file",
}
_DECODE_NOTHING = {"skip_frame": "all"}
#: Errors end decoding. By default decoders replace what they cannot decode by earlier content.
_ERROR_DETECTION = "crccheck+bitstream+buffer+explode"
#: Of VP9 with 8 bits. FFmpeg's own decoder does not notice most changed bytes.
_VP9_DECODER = "libvpx-vp9"
#: Packets of MPEG-4 up to this size may be "not coded": the frame before is repeated.
_MPEG4_NOT_CODED_BYTES = 20
#: They parse all of the parameter sets.
_METADATA_FILTERS = {"h264": "h264_metadata", "hevc": "hevc_metadata"}
_FORBIDDEN_CODES = (b"\0\0\0", b"\0\0\1", b"\0\0\2")


class TimeRange(NamedTuple):
    """The part of a video that is shown from one time on and before another one, in seconds."""

    start_s: float
    end_s: float


class VideoReader:
    """The video stream of an open file."""

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self._container = container
        self._stream = stream
        self._converter = VideoReformatter()
        #: In pixels, as the container states them.
        self.width, self.height = stream.width, stream.height
        #: Frames per second; 0 if unknown.
        self.fps = float(stream.average_rate or stream.base_rate or 0)
        #: The number of frames in the container's index; 0 if there is none.
        self.stated_frames = stream.frames
        seconds = (container.duration or 0) / av.time_base
        #: That number, or one estimated from the duration; 0 if unknown.
        self.likely_frames = stream.frames or round(seconds * self.fps)
        #: The most memory that decoding takes; see `decoder_memory`.
        self.decoder_bytes = decoder_bytes(stream.codec_context, stream.width, stream.height)

    def count_packets(self, limit: int) -> int:
        """Count the packets that become frames, up to `limit`. It takes 5% of decoding's time."""
        shown = (p for p in self._container.demux(self._stream) if p.size and not p.is_discard)
        return sum(1 for _ in islice(shown, limit))

    def count_packets_in(self, part: TimeRange, limit: int) -> int:
        """Count the packets of frames that are shown in a part, up to `limit`."""
        first, last = self._seek(part)
        count = 0
        for packet in self._container.demux(self._stream):
            if packet.pts is None or count >= limit:
                continue
            if packet.dts is not None and packet.dts >= last:
                break
            count += bool(packet.size) and not packet.is_discard and first <= packet.pts < last
        return count

    def frames_in(self, part: TimeRange) -> Iterator[VideoFrame]:
        """Decode the frames that are shown in a part, from the keyframe before it on.

        Raises the errors of `frames`.
        """
        first, last = self._seek(part)
        for frame in self.frames(is_part=True):
            if frame.pts is not None and frame.pts >= last:
                return
            if frame.pts is not None and frame.pts >= first:
                yield frame

    def _seek(self, part: TimeRange) -> tuple[float, float]:
        """Go to the keyframe before a part; return its times in units of the stream."""
        # A frame that is shown half a frame earlier or later is at the stated time.
        slack = 0.5 / self.fps if self.fps else 0.0
        unit, offset = float(self._stream.time_base or 1), self._stream.start_time or 0
        first, last = ((seconds - slack) / unit + offset for seconds in part)
        self._container.seek(max(offset, math.floor(first)), stream=self._stream)
        return first, last

    def frames(self, *, is_part: bool = False) -> Iterator[VideoFrame]:
        """Decode all frames in order. No later frame takes more memory than the headers say.

        Args:
            is_part: Whether the first ones have been left out by seeking.

        Raises:
            InvalidRequest: Frames are missing or damaged.
            FFmpegError: The file cannot be read or decoded; `open_video` handles it.
        """
        decoder = self._decoder()
        most_bits = 8 * bytes_per_pixel(self._stream.codec_context)
        prefix = _nal_prefix(decoder)
        read = shown = decoded = 0
        first: int | None = None
        latest = -math.inf
        for packet in self._container.demux(self._stream):
            if packet.is_corrupt:  # the demuxer found fewer bytes than the container states
                raise InvalidRequest("the video is truncated: a frame is incomplete")
            if packet.size:
                read += 1
                first = packet.pts if first is None else first
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
                        raise InvalidRequest(
                            f"the video is damaged: frame {decoded} is shown before the one that "
                            "precedes it"
                        )
                    latest = frame.pts
                yield frame
                decoded += 1
        has_index = self._container.format.name == _MP4_FORMAT and not is_part
        missing = max(len(self._stream.index_entries) - read if has_index else 0, shown - decoded)
        if missing > 0:
            raise InvalidRequest(
                f"the video is damaged: it has {decoded + missing} frames, {decoded} can be decoded"
            )

    def rgb(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Return a frame as it is to be shown, RGB, `[H, W, 3]`."""
        converted = self._converter.reformat(
            frame, format="rgb24", interpolation=Interpolation.BICUBIC
        )
        rgb = converted.to_ndarray().astype(np.uint8, copy=False)
        turns = round(frame.rotation / 90) % 4
        return np.ascontiguousarray(np.rot90(rgb, turns)) if turns else rgb

    def _decoder(self) -> VideoCodecContext:
        decoder = self._stream.codec_context
        eight_bits = decoder.format is not None and decoder.format.components[0].bits == 8
        if decoder.name == "vp9" and eight_bits and _VP9_DECODER in codecs_available:
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
    """Open a video file for the block.

    Args:
        decodes: Whether pictures are decoded, which tells how they are to be shown. Opening a file
            decodes the first ones. Without them, it takes no memory and a millisecond.

    Raises:
        InvalidRequest: It is not a video, or cannot be read or decoded, also within the block.
    """
    try:
        with _opened(path, **({} if decodes else _DECODE_NOTHING)) as container:
            stream = _best_stream(container)
            if stream.codec_context is None:
                raise InvalidRequest("the video cannot be decoded: its codec is not known")
            if container.format.name == _MP4_FORMAT:
                if len(stream.index_entries) < stream.frames:
                    _check_index(path)
                _check_size(path, stream)
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


def _check_index(path: str) -> None:
    """Check that an edit list is the reason why an mp4 file shows fewer frames than it states.

    FFmpeg leaves out frames that an index with a damaged size or time does not locate.
    """
    with _opened(path, ignore_editlist="1") as container:
        stream = _best_stream(container)
        entries = stream.index_entries
        ends_late = bool(stream.duration and entries and entries[-1].timestamp >= stream.duration)
        if len(entries) < stream.frames or ends_late:
            raise InvalidRequest("the video is damaged: its index does not locate all frames")


def _check_size(path: str, stream: VideoStream) -> None:
    """Check that the parameter sets of H.264 and H.265 state the size that the container states."""
    size = stream.width, stream.height
    if stream.codec_context.name in _METADATA_FILTERS and size not in stated_frame_sizes(path):
        raise InvalidRequest("the video is damaged: its headers have different frame sizes")


def _check_parameter_sets(stream: VideoStream) -> None:
    """Check that the parameter sets of H.264 and H.265 have no other content than they may have.

    Decoders ignore what follows their last field, which damage may have moved.
    """
    if _nal_prefix(stream.codec_context):
        try:
            BitStreamFilterContext(_METADATA_FILTERS[stream.codec_context.name], stream)
        except InvalidDataError:
            raise InvalidRequest("the video is damaged: its parameter sets are invalid") from None


def _damaged_frame(index: int) -> InvalidRequest:
    return InvalidRequest(f"the video is damaged: frame {index} cannot be decoded without errors")


def _must_be_shown(packet: "Packet[VideoStream]", codec: str, first: int | None) -> bool:
    """Return whether a packet must become a frame. There are few exceptions."""
    if packet.is_discard:  # outside the part that an edit list shows
        return False
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
        if any(content.find(code, start, end) >= 0 for code in _FORBIDDEN_CODES):
            return False
    return True
