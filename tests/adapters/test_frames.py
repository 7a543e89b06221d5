"""Frames as torch tensors."""

import numpy as np
import pytest

from rewardfleet import InvalidRequest, video_request
from rewardfleet.adapters.lerobot import as_uint8
from rewardfleet.adapters.libero.frames import upright_image

torch = pytest.importorskip("torch")


def sent(clip: object) -> np.ndarray:
    """Return the frames of a request, [T, H, W, 3], whichever order they are sent in."""
    frames = video_request("task", clip, nframes=4).frames
    pixels = np.frombuffer(b"".join(frames.pixels), np.uint8).reshape(frames.shape)
    return pixels if frames.order == "THWC" else pixels.transpose(0, 2, 3, 1)


def test_tensors_are_sent_like_arrays():
    frames = np.random.default_rng(0).integers(0, 255, (9, 16, 24, 3), np.uint8)
    tensor = torch.from_numpy(frames)
    channels_first = tensor.permute(0, 3, 1, 2)
    for clip in (tensor, channels_first, channels_first.contiguous()):
        assert np.array_equal(sent(clip), sent(frames))
        assert np.array_equal(sent(list(clip)), sent(frames))


@pytest.mark.parametrize("in_list", [False, True])
@pytest.mark.parametrize(("dtype", "low"), [("float32", 0), ("bfloat16", 0), ("float32", -1)])
def test_tensors_of_floats_are_refused_with_the_call_that_makes_them_right(dtype, low, in_list):
    expected = torch.arange(4 * 3 * 8 * 8, dtype=torch.uint8).reshape(4, 3, 8, 8)
    unit = (expected / 255).to(getattr(torch, dtype))
    tensor = unit if low == 0 else unit * 2 - 1
    frames = list(tensor) if in_list else tensor
    with pytest.raises(InvalidRequest) as failure:
        video_request("task", frames)
    call = failure.value.detail.rpartition(": give ")[2]
    fixed = eval(call, {"frames": frames})
    rounded = (unit * 255).round().byte()
    assert video_request("task", fixed) == video_request("task", rounded)


def test_adapters_take_images_of_bfloat16():
    """The policies of robots compute in it, and numpy does not have it."""
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).reshape(3, 8, 8)
    assert (upright_image(image.bfloat16(), "upright") == image.permute(1, 2, 0).numpy()).all()
    unit = (image / 255).bfloat16()
    with pytest.raises(ValueError, match=r"from 0 to 0.\d+, .* give \(image \* 255\).round\(\)"):
        upright_image(unit, "upright")
    assert (as_uint8(unit[None]) == (unit[None].float() * 255).round().byte().numpy()).all()
