"""Frame sizes and token counts of the Qwen-VL family.

The sizes are those of `smart_resize` in qwen-vl-utils: both sides are multiples of the side of one
token, and the area lies between a minimum and a maximum number of tokens. If the caller allows
fewer pixels than the minimum, the caller's limit applies. Frames are resized once. Their pixels
differ from those that qwen-vl-utils makes of files by at most 4 of 255 levels, and by a fifth of a
level on average.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rewardfleet.wire.errors import InvalidRequest

from . import Conversation, Frames, ImagePart, VideoPart
from .settings import ModelSettings

#: The fewest and the most tokens of a frame of a video, and of an image, in qwen-vl-utils 0.0.14.
_VIDEO_TOKENS = (128, 768)
_IMAGE_TOKENS = (4, 16384)


@dataclass(frozen=True)
class QwenGeometry:
    """The geometry of a checkpoint; resizes each frame once, with torch."""

    #: What the chat template writes where an image or a video goes.
    placeholders: ClassVar[re.Pattern[str]] = re.compile(r"<\|(?:image|video)_pad\|>")

    patch: int  #: pixels per side of a patch
    merge: int  #: patches per side of a token
    temporal: int = 2  #: frames that one token covers
    #: The most pixels of a frame, whatever requests allow; None for no limit.
    max_pixels: int | None = None

    @property
    def side(self) -> int:
        """Pixels per side of a token."""
        return self.patch * self.merge

    def video_size(self, height: int, width: int, max_pixels: int) -> tuple[int, int]:
        """Return the height and width in pixels to which frames of a video are resized.

        Raises:
            InvalidRequest: The frames are too narrow.
        """
        return self._size(height, width, _VIDEO_TOKENS, max_pixels)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the same for an image."""
        return self._size(height, width, _IMAGE_TOKENS)

    def tokens(self, conversation: Conversation) -> int:
        """Return how many tokens the images and videos of a conversation take.

        Raises:
            InvalidRequest: The frames are too narrow.
        """
        tokens = 0
        for part in conversation.parts:
            if not isinstance(part, str):
                frames = 1 if isinstance(part, ImagePart) else len(part.frames) // self.temporal
                tokens += frames * math.prod(self._size_of(part)) // self.side**2
        return tokens

    def _size_of(self, part: ImagePart | VideoPart) -> tuple[int, int]:
        if isinstance(part, ImagePart):
            return self.image_size(*part.frame.shape[:2])
        height, width = part.frames[0].shape[:2]
        return self.video_size(height, width, part.max_pixels)

    def _size(
        self, height: int, width: int, tokens: tuple[int, int], max_pixels: int | None = None
    ) -> tuple[int, int]:
        least, most = (each * self.side**2 for each in tokens)
        most = min(most, max_pixels or most, self.max_pixels or most)
        # Imported here: services without a model need not wait seconds for torch.
        from qwen_vl_utils.vision_process import smart_resize  # noqa: PLC0415

        try:
            size: tuple[int, int] = smart_resize(height, width, self.side, min(least, most), most)
        except ValueError:
            raise InvalidRequest(
                f"frames of {width}x{height}: no side may be more than 200 times the other"
            ) from None
        return size

    def prepare(self, conversation: Conversation) -> Conversation:
        """Resize the frames to what the model takes. Blocks, without holding the GIL."""
        return replace(conversation, parts=tuple(map(self._prepared, conversation.parts)))

    def _prepared(self, part: ImagePart | VideoPart | str) -> ImagePart | VideoPart | str:
        if isinstance(part, str):
            return part
        size = self._size_of(part)
        if isinstance(part, ImagePart):
            return replace(part, frame=_resized(part.frame[None], size)[0])
        return replace(part, frames=_resized(np.stack(list(part.frames)), size))


def _resized(frames: Frames, size: tuple[int, int]) -> Frames:
    """Resize as torchvision does, bicubic with antialiasing, but in uint8 throughout."""
    if frames.shape[1:3] == size:
        return frames
    import torch  # noqa: PLC0415
    from torch.nn.functional import interpolate  # noqa: PLC0415

    # The permuted view is in torch's memory format "channels last": its fast path.
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
    resized = interpolate(channels_first, size, mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized.permute(0, 2, 3, 1).numpy())


def read_geometry(config: Mapping[str, Any], own: ModelSettings) -> QwenGeometry:
    """Return the geometry of a checkpoint with this `config.json`, by the settings of its judge.

    Raises:
        ValueError: It is not a model of the family.
    """
    vision = config.get("vision_config") or {}
    if "spatial_merge_size" not in vision:
        raise ValueError(
            f"--model-path {own.model_path}: {config.get('model_type', 'this')!r} is not a "
            "vision-language model of the Qwen-VL family (Qwen2.5-VL, Qwen3-VL and models "
            "derived from them)"
        )
    return QwenGeometry(
        patch=vision.get("patch_size", 14),
        merge=vision["spatial_merge_size"],
        temporal=vision.get("temporal_patch_size", 2),
        max_pixels=getattr(own, "frame_pixels", None),  # a setting of some judges
    )
