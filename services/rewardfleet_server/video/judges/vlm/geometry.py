"""Frames at the size that a model of the Qwen-VL family takes.

The sizes are those of `qwen-vl-utils` (`smart_resize`): both sides a multiple of what one token
covers, the area between a least and a most number of tokens. Where the caller allows fewer pixels
than the least, his word counts. Ours resizes once, in one call that leaves the interpreter free;
against the library's way for files its pixels differ by 4 of 255 levels at most, by a fifth of one
on average. `by_qwen_vl_utils` is the library's way for lists of frames, through Pillow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from rewardfleet.wire.errors import InvalidRequest

from . import Conversation, Frames, Picture, Video

#: Tokens of a frame of a video, and of a picture, in qwen-vl-utils 0.0.14.
_VIDEO_TOKENS = (128, 768)
_PICTURE_TOKENS = (4, 16384)
#: The longest side over the shortest, likewise.
_MAX_RATIO = 200

Prepare = Callable[[Conversation], Conversation]


@dataclass(frozen=True)
class Geometry:
    """How a model cuts frames into tokens.

    Attributes:
        patch: Pixels of a patch's side.
        merge: Patches of a token's side.
        temporal: Frames that one token covers.
        max_pixels: The most pixels of a video's frame, or None.
    """

    patch: int
    merge: int
    temporal: int = 2
    max_pixels: int | None = None

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.patch * self.merge

    def video_size(self, height: int, width: int, max_pixels: int) -> tuple[int, int]:
        """Return the height and width at which a video's frames are shown."""
        least, most = (tokens * self.side**2 for tokens in _VIDEO_TOKENS)
        most = min(most, max_pixels, self.max_pixels or max_pixels)
        return self._size(height, width, min(least, most), most)

    def picture_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width at which a picture is shown."""
        least, most = (tokens * self.side**2 for tokens in _PICTURE_TOKENS)
        return self._size(height, width, least, most)

    def tokens(self, conversation: Conversation) -> int:
        """Return how many tokens the pictures and videos of a conversation will make."""
        return sum(
            self._tokens_of(part) for part in conversation.parts if not isinstance(part, str)
        )

    def _tokens_of(self, part: Picture | Video) -> int:
        frames = 1 if isinstance(part, Picture) else len(part.frames) // self.temporal
        return frames * math.prod(self._size_of(part)) // self.side**2

    def _size_of(self, part: Picture | Video) -> tuple[int, int]:
        if isinstance(part, Picture):
            return self.picture_size(*part.frame.shape[:2])
        height, width = part.frames[0].shape[:2]
        return self.video_size(height, width, part.max_pixels)

    def _size(self, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        if max(height, width) > _MAX_RATIO * min(height, width):
            raise InvalidRequest(
                f"frames of {width}x{height}: no side may be more than {_MAX_RATIO} times the other"
            )
        sides = [max(self.side, round(side / self.side) * self.side) for side in (height, width)]
        if math.prod(sides) > most:
            shrink = math.sqrt(height * width / most)
            sides = [
                max(self.side, math.floor(side / shrink / self.side) * self.side)
                for side in (height, width)
            ]
        elif math.prod(sides) < least:
            grow = math.sqrt(least / (height * width))
            sides = [math.ceil(side * grow / self.side) * self.side for side in (height, width)]
        return sides[0], sides[1]

    def prepare(self, conversation: Conversation) -> Conversation:
        """Resize all frames, each once. Blocks, without holding the interpreter."""
        return replace(conversation, parts=tuple(map(self._prepared, conversation.parts)))

    def _prepared(self, part: Picture | Video | str) -> Picture | Video | str:
        if isinstance(part, str):
            return part
        size = self._size_of(part)
        if isinstance(part, Picture):
            return replace(part, frame=_resized(part.frame[None], size)[0])
        return replace(part, frames=_resized(np.stack(list(part.frames)), size))


def _resized(frames: Frames, size: tuple[int, int]) -> Frames:
    """Resize as torchvision does, bicubic with antialiasing, but in uint8 throughout."""
    if frames.shape[1:3] == size:
        return frames
    # Imported here, as importing torch takes seconds that a service without a model need not pay.
    import torch  # noqa: PLC0415
    from torch.nn.functional import interpolate  # noqa: PLC0415

    # A view, which says "channels last": the fast path for three channels.
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
    resized = interpolate(channels_first, size, mode="bicubic", antialias=True)
    result: Frames = np.ascontiguousarray(resized.permute(0, 2, 3, 1).numpy())
    return result


def by_qwen_vl_utils(geometry: Geometry) -> Prepare:
    """Return the way of `qwen_vl_utils.process_vision_info`, which resizes lists of frames twice.

    Raises:
        ValueError: The package is missing.
    """
    try:
        from qwen_vl_utils import process_vision_info  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(f"--frames qwen-vl-utils: {error}; pip install qwen-vl-utils") from None

    def prepare(conversation: Conversation) -> Conversation:
        content = [_message_part(part, geometry) for part in conversation.parts]
        pictures, videos = process_vision_info(
            [{"role": "user", "content": content}], image_patch_size=geometry.patch
        )
        of_pictures, of_videos = iter(pictures or ()), iter(videos or ())
        parts: list[Picture | Video | str] = []
        for part in conversation.parts:
            if isinstance(part, Picture):
                parts.append(replace(part, frame=np.asarray(next(of_pictures))))
            elif isinstance(part, Video):
                # Whole numbers as floats, channels first.
                frames = next(of_videos).byte().permute(0, 2, 3, 1).contiguous().numpy()
                parts.append(replace(part, frames=frames))
            else:
                parts.append(part)
        return replace(conversation, parts=tuple(parts))

    return prepare


def _message_part(part: Picture | Video | str, geometry: Geometry) -> dict[str, Any]:
    if isinstance(part, Picture):
        return {"type": "image", "image": Image.fromarray(part.frame)}
    if isinstance(part, Video):
        height, width = part.frames[0].shape[:2]
        size = geometry.video_size(height, width, part.max_pixels)
        return {
            "type": "video",
            "video": [Image.fromarray(frame) for frame in part.frames],
            # For lists of frames the library itself rounds to twice the model's side, and fails
            # where its least size is above what the caller allows.
            "resized_height": size[0],
            "resized_width": size[1],
        }
    return {"type": "text", "text": part}
