"""Frames of LIBERO: upright uint8 images, and those of an episode in bounded memory."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rewardfleet.arrays import to_array
from rewardfleet.wire.video import sample_indices

Image = NDArray[np.uint8]

#: What was done to the images: "raw": nothing, LIBERO's camera returns them upside down. "rotated":
#: by 180 degrees (`image[::-1, ::-1]`), as OpenVLA and RLinf do, so that left and right are
#: swapped. "upright": they show the scene as it is.
Orientation = Literal["raw", "rotated", "upright"]

#: How many frames are stored for each frame that is sent. The more, the more evenly those are
#: spread over a long episode: the distance between two of them varies by at most half.
_STORED_PER_SENT = 4


def upright_image(frame: Any, orientation: Orientation) -> Image:
    """Return a copy of an image, upright: [H, W, 3], uint8, contiguous.

    Args:
        frame: An array or a torch tensor on any device, [H, W, 3] or [3, H, W]: uint8, or numbers
            from 0 to 255. Images with values from 0 to 1 are refused, as they could be dark ones.

    Raises:
        ValueError: It is not such an image.
    """
    image = to_array(frame)
    shown = f"{image.dtype} {list(image.shape)}"
    if image.ndim != 3 or not image.size or 3 not in {image.shape[0], image.shape[2]}:
        raise ValueError(f"give an image [H, W, 3] or [3, H, W]; got {shown}")
    if image.shape[2] != 3:
        image = image.transpose(1, 2, 0)
    if image.dtype != np.uint8:
        if image.dtype.kind not in "fiu":
            raise ValueError(f"give an image of uint8; got {shown}")
        low, high = float(image.min()), float(image.max())
        shown = f"{shown} from {low:g} to {high:g}"
        if not (low >= 0 and high <= 255):  # also if there is a NaN
            raise ValueError(f"give values from 0 to 255; got {shown}")
        if image.dtype.kind == "f" and high <= 1:
            raise ValueError(
                f"give uint8 from 0 to 255; got {shown}, which may be a dark image; "
                "if it is in [0, 1], give (image * 255).round()"
            )
        image = np.rint(image).astype(np.uint8)
    flips = {"raw": np.s_[::-1], "rotated": np.s_[:, ::-1], "upright": np.s_[:]}
    return np.array(image[flips[orientation]], order="C")


class EpisodeRecorder:
    """The frames of one episode: the first, the last, and others at even distances.

    It stores every frame until there are `4 x nframes`. Then it drops every second one, and stores
    only every second one from then on; and so on. The last frame is always stored.

    Args:
        nframes: How many frames are selected at the end, 1 or more.
    """

    def __init__(self, nframes: int) -> None:
        self._nframes = nframes
        self._stride = 1
        self._frames: list[Image] = []  # those at the multiples of the stride, and the last one
        self.count = 0  #: number of frames that were added
        #: Why the episode cannot be scored, e.g. a frame that could not be added.
        self.problem: str | None = None

    def add(self, frame: Image) -> None:
        """Add the next frame, [H, W, 3]. It is not copied.

        Raises:
            ValueError: It has another size than the frames before.
        """
        before = self._frames[0] if self._frames else frame
        if frame.shape != before.shape:
            size, others = ("x".join(map(str, each.shape[:2])) for each in (frame, before))
            raise ValueError(f"the frame is {size}, after frames of {others} in the same episode")
        if self.count and (self.count - 1) % self._stride:
            self._frames.pop()  # stored as the last one only
        self._frames.append(frame)
        is_multiple = self.count % self._stride == 0
        if is_multiple and len(self._frames) > _STORED_PER_SENT * self._nframes:
            self._frames = self._frames[::2]
            self._stride *= 2
        self.count += 1

    def select(self, frame_rate: float) -> tuple[list[Image], float]:
        """Return at most `nframes` frames, in order, and their rate in frames per second.

        The first and the last frame are among them (of one, it is the last), so that their mean
        rate is exact. `frame_rate` is that in Hz at which frames were added.

        Raises:
            ValueError: There are no frames, or there is a `problem`.
        """
        if self.problem is not None or not self._frames:
            raise ValueError(self.problem or "no frames were recorded")
        *indices, _ = sample_indices(self.count, self._nframes)
        stored = (min(round(each / self._stride), len(self._frames) - 2) for each in indices)
        share = len(indices) / (self.count - 1) if indices else 1.0
        return [*(self._frames[each] for each in stored), self._frames[-1]], frame_rate * share
