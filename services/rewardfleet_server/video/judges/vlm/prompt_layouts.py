"""How a model is shown a clip."""

import math
import uuid
from collections.abc import Sequence
from typing import Protocol

from rewardfleet_server.video.frames import UNKNOWN_FPS, Clip

from . import Conversation, Picture, Video


class View(Protocol):
    """Makes conversations of a clip and a question."""

    def whole(self, clip: Clip, question: str, system: str | None) -> Conversation:
        """Show all of the clip, then ask."""

    def moments(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show the clip up to each of at most `count` moments, evenly spread; the last is its end.

        Returns:
            For each moment the source's index of its last frame, and the conversation.
        """


class AsVideo:
    """The clip is a video."""

    def whole(self, clip: Clip, question: str, system: str | None) -> Conversation:
        whole = _video(clip, 0, len(clip.frames), uuid.uuid4().hex)
        return Conversation((whole, question), system)

    def moments(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show the frames two by two, as short videos.

        So a longer conversation begins with all of a shorter one but its question, and an engine
        need not read that part again.
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


class FirstVideoLast:
    """The first frame, the clip as a video, and the last frame: the view of PRIMO-R1."""

    def whole(self, clip: Clip, question: str, system: str | None) -> Conversation:
        return self._until(clip, len(clip.frames), question, system)

    def moments(
        self, clip: Clip, count: int, question: str, system: str | None
    ) -> list[tuple[int, Conversation]]:
        """Show each moment as its own whole; only the first frame is the same in all."""
        return [
            (clip.indices[length - 1], self._until(clip, length, question, system))
            for length in even_lengths(len(clip.frames), count)
        ]

    @staticmethod
    def _until(clip: Clip, length: int, question: str, system: str | None) -> Conversation:
        name = uuid.uuid4().hex
        first = Picture(clip.frames[0], f"{name}-first")
        last = Picture(clip.frames[length - 1], f"{name}-last")
        return Conversation((first, _video(clip, 0, length, name), last, question), system)


def even_lengths(total: int, count: int) -> Sequence[int]:
    """Return at most `count` lengths of prefixes of `total` things, ascending; the last is all.

    >>> even_lengths(8, 4)
    [2, 4, 6, 8]
    """
    return sorted({math.ceil(total * step / count) for step in range(1, count + 1)})


def _video(clip: Clip, start: int, end: int, name: str) -> Video:
    """Make a video of an even number of frames: an odd last one is shown twice."""
    places = [*range(start, end), *([end - 1] if (end - start) % 2 else [])]
    return Video(
        frames=tuple(clip.frames[place] for place in places),
        indices=tuple(clip.indices[place] for place in places),
        total=clip.total,
        fps=clip.fps or UNKNOWN_FPS,
        max_pixels=clip.max_pixels,
        id=name,
    )
