"""The frames of one episode, in bounded memory."""

from rewardfleet.wire.video import sample_indices

from .images import Image

#: How many frames are stored for each frame that is sent. The more, the more evenly those are
#: spread over a long episode: the distance between two of them varies by at most half.
_STORED_PER_SENT = 4


class EpisodeRecorder:
    """The frames of one episode: the first, the last, and others at even distances.

    It stores every frame until there are `4 x nframes`. Then it drops every second one, and stores
    only every second one from then on; and so on. The last frame is always stored.

    Args:
        nframes: How many frames are selected at the end, 1 or more.

    Attributes:
        count: Number of frames that were added.
    """

    def __init__(self, nframes: int) -> None:
        self._nframes = nframes
        self._stride = 1
        self._frames: list[Image] = []  # those at the multiples of the stride
        self._last: Image | None = None
        self.count = 0

    def __len__(self) -> int:
        """Return how many frames are stored."""
        is_separate = self.count and (self.count - 1) % self._stride
        return len(self._frames) + bool(is_separate)

    def add(self, frame: Image) -> None:
        """Add the next frame, [H, W, 3]. It is not copied.

        Raises:
            ValueError: It has another size than the frames before.
        """
        if self._last is not None and frame.shape != self._last.shape:
            before = self._last.shape
            raise ValueError(
                f"the frame is {frame.shape[0]}x{frame.shape[1]}, after frames of "
                f"{before[0]}x{before[1]} in the same episode"
            )
        if self.count % self._stride == 0:
            self._frames.append(frame)
        self._last = frame
        self.count += 1
        if len(self._frames) > _STORED_PER_SENT * self._nframes:
            self._frames = self._frames[::2]
            self._stride *= 2

    def select(self, frame_rate: float) -> tuple[list[Image], float]:
        """Return at most `nframes` frames, in order, and their rate in frames per second.

        The first and the last frame are among them (of one, it is the last), so that their mean
        rate is exact.

        Args:
            frame_rate: The rate in Hz at which frames were added.

        Raises:
            ValueError: There are no frames.
        """
        if self._last is None:
            raise ValueError("no frames were recorded")
        indices = sample_indices(self.count, self._nframes)
        frames = [self._nearest(index) for index in indices]
        rate = frame_rate
        if len(indices) > 1:
            rate *= (len(indices) - 1) / (self.count - 1)
        return frames, rate

    def _nearest(self, index: int) -> Image:
        if index == self.count - 1:
            assert self._last is not None  # noqa: S101 - checked by `select`
            return self._last
        position = min(round(index / self._stride), len(self._frames) - 1)
        return self._frames[position]
