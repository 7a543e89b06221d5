"""Layouts of a clip in a prompt."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import cv2
import numpy as np
from PIL import Image

from rewardfleet_server.video.clip.frames import UNKNOWN_FPS, Clip, Frame

from . import Conversation, ImagePart, VideoPart

#: Pixels of the sides of a frame's square and of the gaps between them, for SOLE-R1.
_SQUARE, _GAP = 384, 5
_COMPOSITE_SIZE = (1176, 392)  #: width and height of the three squares, as multiples of 28


class PromptLayout:
    """Makes conversations of a clip and a question.

    The name of the class is part of cache keys, see `JudgeSpec.digest`.
    """

    is_open: ClassVar = False  #: whether the model continues the question

    def full_prompt(self, clip: Clip, question: str, system: str | None) -> Conversation:
        """Show the complete clip, then ask the question."""
        return Conversation((*self._shown(clip), question), system, self.is_open)

    def prefix_prompts(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show at most `count` prefixes of the clip, evenly spread; the last is the complete clip.

        Each comes with the source's index of its last frame. Here, they are not parts of one
        another: each is a clip of its own.
        """
        prefixes = (part_of(clip, 0, end) for end in even_lengths(len(clip.frames), count))
        return [(each.indices[-1], self.full_prompt(each, question, system)) for each in prefixes]

    def _shown(self, clip: Clip) -> tuple[ImagePart | VideoPart, ...]:
        raise NotImplementedError


class AsOneVideo(PromptLayout):
    """The clip as one video, and each of its prefixes as a video of its own.

    The prompts of `AsVideo` share an engine's cache, but have marks between their short videos,
    which change the probabilities. Published models see what their authors show.
    """

    def _shown(self, clip: Clip) -> tuple[ImagePart | VideoPart, ...]:
        return (_video(clip),)


class AsVideo(AsOneVideo):
    """The clip as one video, and its prefixes as parts of one another."""

    def prefix_prompts(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show the frames in pairs, as short videos.

        A longer conversation then begins with all frames of a shorter one, and an engine with a
        prefix cache processes those only once.
        """
        starts = range(0, len(clip.frames), 2)
        pairs = [_video(part_of(clip, start, start + 2)) for start in starts]
        return [
            (pairs[length - 1].indices[-1], Conversation((*pairs[:length], question), system))
            for length in even_lengths(len(pairs), count)
        ]


class OneVideoToContinue(AsOneVideo):
    """The clip as one video, and a text that the model continues: the layout of TOPReward."""

    is_open = True


class FirstVideoLast(PromptLayout):
    """The first frame, the clip as a video, and the last frame: the layout of PRIMO-R1."""

    def _shown(self, clip: Clip) -> tuple[ImagePart | VideoPart, ...]:
        return ImagePart(clip.frames[0]), _video(clip), ImagePart(clip.frames[-1])


class FirstPreviousCurrent(PromptLayout):
    """An image of the first, the previous and the last frame: the layout of SOLE-R1.

    As its authors do, each frame is fitted into a black square of 384x384, the squares are joined
    with black gaps of 5 pixels, and the image is resized to multiples of 28 pixels.
    """

    def _shown(self, clip: Clip) -> tuple[ImagePart | VideoPart, ...]:
        """Make the image; takes milliseconds."""
        gap = np.zeros((_SQUARE, _GAP, 3), np.uint8)
        shown = clip.frames[0], clip.frames[-2:][0], clip.frames[-1]
        first, previous, last = map(_in_square, shown)
        joined = Image.fromarray(np.hstack([first, gap, previous, gap, last]))
        return (ImagePart(np.asarray(joined.resize(_COMPOSITE_SIZE))),)


def _in_square(frame: Frame) -> Frame:
    """Fit a frame into a black square, in its middle."""
    height, width = frame.shape[:2]
    scale = _SQUARE / max(height, width)
    size = max(int(width * scale), 1), max(int(height * scale), 1)
    left, top = (_SQUARE - size[0]) // 2, (_SQUARE - size[1]) // 2
    square = np.zeros((_SQUARE, _SQUARE, 3), np.uint8)
    resized = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
    square[top : top + size[1], left : left + size[0]] = resized
    return square


def even_lengths(total: int, count: int) -> Sequence[int]:
    """Return at most `count` prefix lengths of `total` items, ascending; the last is `total`.

    >>> even_lengths(8, 4)
    [2, 4, 6, 8]
    """
    return sorted({math.ceil(total * step / count) for step in range(1, count + 1)})


def part_of(clip: Clip, start: int, end: int) -> Clip:
    """Return a clip of the frames from one position to before another."""
    return replace(clip, frames=clip.frames[start:end], indices=clip.indices[start:end])


def _video(clip: Clip) -> VideoPart:
    """Make a video whose odd last frame is shown twice, as Qwen-VL models merge frames in pairs."""
    even = len(clip.frames) - len(clip.frames) % 2
    return VideoPart(
        frames=clip.frames + clip.frames[even:],
        indices=clip.indices + clip.indices[even:],
        total=clip.total,
        fps=clip.fps or UNKNOWN_FPS,
        max_pixels=clip.max_pixels,
    )
