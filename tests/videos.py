"""Encode test videos in all containers and codecs that the video service accepts."""

import functools
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

os.environ.setdefault("SVT_LOG", "0")  # the AV1 encoder writes its settings to standard error

FPS = 20

_TABLES = json.loads((Path(__file__).parent / "data" / "encoders.json").read_text())

#: Encoder and options by codec; small and fast, with several keyframes.
ENCODERS: dict[str, tuple[str, dict[str, str]]] = _TABLES["encoders"]

#: Format and muxer options by container.
CONTAINERS: dict[str, tuple[str, dict[str, str]]] = _TABLES["containers"]


class _Pipe(io.RawIOBase):
    """An output that cannot seek, as of a live recording."""

    def __init__(self) -> None:
        self.content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:
        self.content += content
        return len(content)


@contextmanager
def _scheduling_restored() -> Iterator[None]:
    """Undo what the AV1 encoder does as root: it gives the calling thread real-time priority.

    Servers that the thread starts later inherit it, and their threads no longer share the cores.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def scene(index: int, width: int, height: int) -> np.ndarray:
    """Return frame `index` of a scene: a textured background, and a moving square."""
    y, x = np.mgrid[:height, :width]
    texture = np.random.default_rng(7).integers(0, 40, (height, width))
    frame = np.stack([x * 2 % 256, y * 3 % 256, (x + y) % 256], axis=-1) // 2
    frame += texture[..., None]
    left, top = 2 * index % max(width - 16, 1), index % max(height - 16, 1)
    frame[top : top + 16, left : left + 16] = (220, 40 + index % 100, 30)
    return frame.astype(np.uint8)


def encode_cached(container: str, codec: str, pix_fmt: str = "yuv420p") -> bytes:
    """Return the same file as `encode`, which takes tens of milliseconds."""
    return _encoded(container, codec, "yuvj420p" if codec == "mjpeg" else pix_fmt)


@functools.cache
def _encoded(container: str, codec: str, pix_fmt: str) -> bytes:
    return encode(container, codec, pix_fmt=pix_fmt)


def encode(
    container: str,
    codec: str = "h264",
    *,
    frames: int = 40,
    width: int = 96,
    height: int = 64,
    pix_fmt: str = "yuv420p",
    gop: int = 10,
    audio: bool = False,
    variable_rate: bool = False,
    codec_options: Mapping[str, str] | None = None,
    muxer_options: Mapping[str, str] | None = None,
) -> bytes:
    """Return a video file. `container` is a key of `CONTAINERS`, `codec` one of `ENCODERS`."""
    name, options = ENCODERS[codec]
    form, muxer = CONTAINERS[container]
    pipe = _Pipe()
    muxer = {**muxer, **(muxer_options or {})}
    with (
        _scheduling_restored(),
        tempfile.NamedTemporaryFile() as file,
        av.open(
            pipe if container == "live" else file.name, "w", format=form, options=muxer
        ) as output,
    ):
        if codec == "vp9":  # its profiles
            options = {**options, "profile": str(2 * ("10" in pix_fmt) + ("444" in pix_fmt))}
        stream = output.add_stream(name, rate=FPS, options={**options, **(codec_options or {})})
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        if variable_rate:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound = output.add_stream("libopus", rate=48000, layout="mono") if audio else None
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(scene(index, width, height), format="rgb24")
            if variable_rate:
                frame.pts, frame.time_base = 50 * index + index % 3 * 10, Fraction(1, 1000)
            else:
                frame.pts, frame.time_base = index, Fraction(1, FPS)
            output.mux(stream.encode(frame))
            if sound is not None:
                samples = np.zeros((1, 48000 // FPS), np.int16)
                heard = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
                heard.pts, heard.sample_rate = index * 48000 // FPS, 48000
                heard.time_base = Fraction(1, 48000)
                output.mux(sound.encode(heard))
        output.mux(stream.encode(None))
        if sound is not None:
            output.mux(sound.encode(None))
        output.close()
        return bytes(pipe.content) or Path(file.name).read_bytes()


#: The codecs of each container, as in the formats' standards.
CODECS: dict[str, list[str]] = _TABLES["codecs"]
