"""Layouts of a clip in a prompt."""

import math
import uuid
from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
from PIL import Image

from rewardfleet_server.video.clip.frames import UNKNOWN_FPS, Clip, Frame

from . import Conversation, ImagePart, VideoPart

#: Pixels of the sides of a frame's square and of the gaps between them, for SOLE-R1.
_SQUARE, _GAP = 384, 5
#: Width and height of the three squares, as multiples of 28.
_COMPOSITE_SIZE = (1176, 392)


class PromptLayout:
    """Makes conversations of a clip and a question.

    The name of the class is part of cache keys, see `JudgeSpec.digest`.
    """

    def full_prompt(self, clip: Clip, question: str, system: str | None) -> Conversation:
        """Show the complete clip, then ask the question."""
        return self._prefix(clip, len(clip.frames), question, system)

    def prefix_prompts(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show at most `count` prefixes of the clip, evenly spread; the last is the complete clip.

        Here, they are not parts of one another: each is a clip of its own.

        Returns:
            For each prefix the source's index of its last frame, and the conversation.
        """
        return [
            (clip.indices[length - 1], self._prefix(clip, length, question, system))
            for length in even_lengths(len(clip.frames), count)
        ]

    def _prefix(self, clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        raise NotImplementedError


class AsOneVideo(PromptLayout):
    """The clip as one video, and each of its prefixes as a video of its own.

    The prompts of `AsVideo` share an engine's cache, but have marks between their short videos,
    which change the probabilities. Published models see what their authors show.
    """

    def _prefix(self, clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        return Conversation((_video(clip, 0, length, uuid.uuid4().hex), question), system)


class AsVideo(AsOneVideo):
    """The clip as one video, and its prefixes as parts of one another."""

    def prefix_prompts(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show the frames in pairs, as short videos.

        A longer conversation then begins with all frames of a shorter one, and an engine with a
        prefix cache processes those only once.
        """
        name = uuid.uuid4().hex
        pairs = [
            _video(clip, start, min(start + 2, len(clip.frames)), f"{name}-{start}")
            for start in range(0, len(clip.frames), 2)
        ]
        return [
            (pairs[length - 1].indices[-1], Conversation((*pairs[:length], question), system))
            for length in even_lengths(len(pairs), count)
        ]


class OneVideoToContinue(AsOneVideo):
    """The clip as one video, and a text that the model continues: the layout of TOPReward."""

    def _prefix(self, clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        return replace(super()._prefix(clip, length, question, system), is_open=True)


class FirstVideoLast(PromptLayout):
    """The first frame, the clip as a video, and the last frame: the layout of PRIMO-R1."""

    def _prefix(self, clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        name = uuid.uuid4().hex
        first = ImagePart(clip.frames[0], f"{name}-first")
        last = ImagePart(clip.frames[length - 1], f"{name}-last")
        return Conversation((first, _video(clip, 0, length, name), last, question), system)


class FirstPreviousCurrent(PromptLayout):
    """An image of the first, the previous and the current frame: the layout of SOLE-R1.

    As its authors do, each frame is fitted into a black square of 384x384, the squares are joined
    with black gaps of 5 pixels, and the image is resized to multiples of 28 pixels.
    """

    def _prefix(self, clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        return self.at(clip, length - 1, question, system)

    @staticmethod
    def at(clip: Clip, position: int, question: str, system: str | None) -> Conversation:
        """Ask about the frame at `position`; takes milliseconds."""
        shown = (0, max(position - 1, 0), position)
        gap = np.zeros((_SQUARE, _GAP, 3), np.uint8)
        first, previous, current = (_in_square(clip.frames[index]) for index in shown)
        joined = np.hstack([first, gap, previous, gap, current])
        image = np.asarray(Image.fromarray(joined).resize(_COMPOSITE_SIZE))
        return Conversation((ImagePart(image, uuid.uuid4().hex), question), system)


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


def _video(clip: Clip, start: int, end: int, name: str) -> VideoPart:
    """Make a video whose odd last frame is shown twice, as Qwen-VL models merge frames in pairs."""
    positions = [*range(start, end), *([end - 1] if (end - start) % 2 else [])]
    return VideoPart(
        frames=tuple(clip.frames[position] for position in positions),
        indices=tuple(clip.indices[position] for position in positions),
        total=clip.total,
        fps=clip.fps or UNKNOWN_FPS,
        max_pixels=clip.max_pixels,
        id=name,
    )
