"""The most memory that decoding a video takes, estimated from its headers before it is opened.

A decoder keeps the pictures that later ones refer to, and those that wait to be shown. How many
may change within the stream, so the most that the decoder of the codec keeps counts.
"""

from av import VideoCodecContext

#: The most pictures that a decoder with one thread keeps, by codec: the sizes of the tables of
#: FFmpeg's H.264 (H264_MAX_PICTURE_COUNT), H.265 and H.266 (32, and two in the making), and 8
#: references of VP9 and AV1 with the queues of libvpx and dav1d.
_PICTURES = {"h264": 36, "hevc": 34, "vvc": 34, "vp8": 8, "mpeg4": 8}
_PICTURES |= dict.fromkeys(("vp9", "libvpx-vp9", "libdav1d", "av1"), 16)
_UNKNOWN_PICTURES = 36
#: Of codecs whose pictures do not refer to others, as MJPEG: AV_CODEC_PROP_INTRA_ONLY.
_INTRA_PICTURES, _INTRA_ONLY = 4, 1
#: Bytes per pixel of H.264, whose format is known only when a picture is decoded, by profile.
_H264_BYTES = {"Baseline": 1.5, "Constrained Baseline": 1.5, "Main": 1.5, "Extended": 1.5}
_H264_BYTES |= {"High": 1.5, "High 10": 3.0, "High 4:2:2": 4.0}
_UNKNOWN_BYTES = 8.0  #: four samples of 16 bits each
#: Pixels that decoders add to both sides of a picture, for motion vectors that leave it.
EDGES = 128
#: Bytes per pixel of a picture's motion vectors, and of converting one picture to RGB.
_MOTION_BYTES, _RGB_BYTES = 0.75, 12.0


def bytes_per_pixel(decoder: VideoCodecContext) -> float:
    """Return the bytes of one pixel of a stream whose headers have been read, or the most."""
    if decoder.name == "h264":
        return _H264_BYTES.get((decoder.profile or "").removesuffix(" Intra"), 6.0)
    return decoder.format.padded_bits_per_pixel / 8 if decoder.format else _UNKNOWN_BYTES


def decoder_bytes(decoder: VideoCodecContext, width: int, height: int) -> int:
    """Return the most bytes that decoding in one thread takes, with a frame as RGB, by headers."""
    is_intra = decoder.codec.properties & _INTRA_ONLY
    pictures = _INTRA_PICTURES if is_intra else _PICTURES.get(decoder.name, _UNKNOWN_PICTURES)
    per_pixel = pictures * (bytes_per_pixel(decoder) + _MOTION_BYTES) + _RGB_BYTES
    return round((width + EDGES) * (height + EDGES) * per_pixel)
