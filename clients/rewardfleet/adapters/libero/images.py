"""Camera images of LIBERO as upright uint8 arrays."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rewardfleet.adapters._rows import to_array

Image = NDArray[np.uint8]

#: What was done to the images: "raw": nothing, LIBERO's camera returns them upside down. "rotated":
#: by 180 degrees (`image[::-1, ::-1]`), as OpenVLA and RLinf do, so that left and right are
#: swapped. "upright": they show the scene as it is.
Orientation = Literal["raw", "rotated", "upright"]


def check_orientation(orientation: str) -> None:
    """Refuse a name that is not an `Orientation`.

    Raises:
        ValueError: It is not.
    """
    if orientation not in get_args(Orientation):
        raise ValueError(f'orientation: give "raw", "rotated" or "upright", not {orientation!r}')


def upright_image(frame: Any, orientation: Orientation) -> Image:
    """Return a copy of an image, upright.

    Args:
        frame: An array or a torch tensor on any device, [H, W, 3] or [3, H, W]: uint8, or numbers
            from 0 to 255. Images with values from 0 to 1 are refused, as they could be dark ones.
        orientation: What was done to it.

    Returns:
        [H, W, 3], uint8, contiguous.

    Raises:
        ValueError: It is not such an image.
    """
    image = _as_uint8(_channels_last(to_array(frame)))
    if orientation == "raw":
        image = image[::-1]
    elif orientation == "rotated":
        image = image[:, ::-1]
    return np.array(image, order="C")


def _channels_last(image: NDArray[Any]) -> NDArray[Any]:
    if image.ndim == 3 and image.size:
        if image.shape[2] == 3:
            return image
        if image.shape[0] == 3:
            transposed: NDArray[Any] = image.transpose(1, 2, 0)
            return transposed
    raise ValueError(f"give an image [H, W, 3] or [3, H, W]; got {_describe(image)}")


def _as_uint8(image: NDArray[Any]) -> Image:
    if image.dtype == np.uint8:
        return image
    is_float = np.issubdtype(image.dtype, np.floating)
    if not (is_float or np.issubdtype(image.dtype, np.integer)):
        raise ValueError(f"give an image of uint8; got {_describe(image)}")
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 255):  # also if there is a NaN
        raise ValueError(
            f"give values from 0 to 255; got {_describe(image)} from {low:g} to {high:g}"
        )
    if is_float and high <= 1:
        raise ValueError(
            f"give uint8 from 0 to 255; got {_describe(image)} from {low:g} to {high:g}, "
            "which may be a dark image; if it is in [0, 1], give (image * 255).round()"
        )
    rounded: Image = np.rint(image).astype(np.uint8)
    return rounded


def _describe(image: NDArray[Any]) -> str:
    return f"{image.dtype} {list(image.shape)}"
