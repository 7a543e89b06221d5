"""Frames as arrays: those that are sent, and PNG images, with zlib only."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wire.errors import InvalidRequest
from .wire.frames import MAX_FRAMES_SENT, FrameOrder, Frames
from .wire.video import sample_indices


def sampled(clip: Any, nframes: int) -> tuple[list[NDArray[np.uint8]], FrameOrder]:
    """Return the frames that the server would sample, and the order of their dimensions.

    If they are of another shape or type, the `InvalidRequest` has the call that fixes it.
    """
    if hasattr(clip, "shape") and (len(clip.shape) != 4 or not len(clip)):
        is_image = len(clip.shape) == 3 and 3 in (clip.shape[0], clip.shape[2])
        fix = ": of a single frame, give frames[None]" if is_image else ""
        raise _invalid_frames(clip.dtype, clip.shape, fix)
    # `nframes` out of range is refused when the request is validated.
    indices = list(sample_indices(len(clip), min(max(nframes, 1), MAX_FRAMES_SENT)))
    if hasattr(clip, "detach"):  # a tensor, of which only these frames are copied from its device
        frames = list(to_array(clip[indices]))
    else:
        frames = [to_array(clip[index]) for index in indices]
    first = frames[0]
    if {(frame.shape, frame.dtype) for frame in frames} != {(first.shape, first.dtype)}:
        shapes = sorted({f"{frame.dtype} {list(frame.shape)}" for frame in frames})
        raise InvalidRequest(f"give frames of one size and type; got {' and '.join(shapes[:3])}")
    shape = (len(frames), *first.shape)
    is_last = len(shape) == 4 and shape[3] == 3
    is_second = len(shape) == 4 and shape[1] == 3
    if not (is_last or is_second) or not first.size:
        has_alpha = len(shape) == 4 and shape[3] == 4
        is_list = not hasattr(clip, "shape")
        call = "[frame[..., :3] for frame in frames]" if is_list else "frames[..., :3]"
        raise _invalid_frames(first.dtype, shape, f": give {call}" if has_alpha else "")
    if first.dtype != np.uint8:
        raise _invalid_frames(first.dtype, shape, _how_to_fix(np.stack(frames), clip))
    if not is_last and first.transpose(1, 2, 0).flags.c_contiguous:  # a view with other axes
        return [frame.transpose(1, 2, 0) for frame in frames], "THWC"
    return frames, "THWC" if is_last else "TCHW"


def raw_frames(frames: list[NDArray[np.uint8]], order: FrameOrder) -> Frames:
    """Return frames as their bytes, which are copied only if they are not contiguous."""
    sent = Frames(shape=(len(frames), *frames[0].shape), order=order)
    sent.set_pixels(*(np.ascontiguousarray(frame).reshape(-1).data for frame in frames))
    return sent


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


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image, [H, W, 3], without loss: row differences, fast deflate."""
    height, width, _ = image.shape
    rows = np.empty((height, 1 + width * 3), np.uint8)
    rows[:, 0] = 2  # PNG filter "up": each row as its difference to the row above
    flat = image.reshape(height, -1)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bit, RGB
    pixels = zlib.compress(rows.tobytes(), level=1)
    parts = _chunk(b"IHDR", header), _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(name))
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
