"""Frames of an episode: their orientation, their types, bounded memory."""

import numpy as np
import pytest

from rewardfleet.adapters.libero.frames import EpisodeRecorder, upright_image

SCENE = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
RAW = SCENE[::-1]


def test_images_become_upright_and_uint8_with_channels_last():
    assert np.array_equal(upright_image(RAW, "raw"), SCENE)
    assert np.array_equal(upright_image(RAW[::-1, ::-1], "rotated"), SCENE)
    types = SCENE.astype(np.float32), SCENE.astype(np.int64), SCENE.tolist()
    for image in (SCENE, *types, SCENE.transpose(2, 0, 1), np.asfortranarray(SCENE)):
        stored = upright_image(image, "upright")
        assert stored.dtype == np.uint8 and stored.flags.c_contiguous
        assert np.array_equal(stored, SCENE)


def test_an_image_is_copied_as_environments_reuse_their_buffers():
    buffer = SCENE.copy()
    stored = upright_image(buffer, "upright")
    buffer[:] = 0
    assert np.array_equal(stored, SCENE)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 5, 4), np.uint8), r"give an image \[H, W, 3\].*uint8 \[4, 5, 4\]"),
        (np.zeros((4, 5), np.uint8), r"uint8 \[4, 5\]"),
        (np.zeros((0, 5, 3), np.uint8), r"uint8 \[0, 5, 3\]"),
        (None, r"object \[\]"),
        (SCENE / 255, r"float64 \[4, 5, 3\] from 0 to 0.23.*if it is in \[0, 1\], give"),
        (SCENE - 10.0, "values from 0 to 255; got float64 .* from -10 to 49"),
        (SCENE.astype(np.int32) * 9, "from 0 to 531"),
        (np.full((4, 5, 3), np.nan), "from nan to nan"),
        (SCENE > 3, "bool"),
        (SCENE.astype(object), "object"),
    ],
)
def test_other_images_are_refused_with_their_shape_and_type(image, message):
    with pytest.raises(ValueError, match=message):
        upright_image(image, "upright")


def frame(level: int) -> np.ndarray:
    return np.full((2, 2, 3), level % 256, np.uint8) + np.array([0, level // 256, 0], np.uint8)


def level(image: np.ndarray) -> int:
    return int(image[0, 0, 0]) + 256 * ((int(image[0, 0, 1]) - int(image[0, 0, 0])) % 256)


def recorded(count: int, nframes: int) -> tuple[list[int], float, int]:
    """Record frames numbered from 0; return which were selected, their rate, the most stored."""
    recorder = EpisodeRecorder(nframes)
    most = 0
    for index in range(count):
        recorder.add(frame(index))
        most = max(most, len(recorder._frames))
    frames, rate = recorder.select(20.0)
    return [level(each) for each in frames], rate, most


@pytest.mark.parametrize("nframes", [1, 2, 3, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 64, 65, 129, 500, 5000])
def test_memory_is_bounded_and_first_and_last_frames_are_sent(count, nframes):
    selected, rate, most = recorded(count, nframes)
    assert most <= 4 * nframes + 1
    assert len(selected) == min(count, nframes)
    assert selected == sorted({*selected}), "in order, each once"
    assert selected[-1] == count - 1
    if len(selected) > 1:
        assert selected[0] == 0
        assert (len(selected) - 1) / rate == pytest.approx((count - 1) / 20), "true duration"
        even = (count - 1) / (len(selected) - 1)
        gaps = np.diff(selected)
        assert even / 2 - 1 <= gaps.min() and gaps.max() <= even * 1.5 + 1


def test_the_selection_is_exactly_even_while_all_frames_are_stored():
    assert recorded(61, 16)[0] == list(range(0, 61, 4))
