"""LeRobot 0.6.1: rewards by its factory, registry and processors, and a saved reward model."""

import re
import sys
from importlib.machinery import SourceFileLoader
from typing import Any

import pytest

from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video

from ..conftest import DATA
from ..server.processes import service_process
from .trainers import UNREACHABLE, absent, error_of, in_process, needs_clients

pytestmark = [needs_clients, pytest.mark.slow]

CLIP = "libero/videos/libero_goal__put_the_bowl_on_the_stove__{}.mp4"
RIGHT, WRONG = "success__s63446", "near_miss_hover__s59196"


def installed() -> None:
    """Make LeRobot importable without what only its datasets, policies and robots use.

    Of the modules that are loaded, Python 3.11 cannot parse `class DataProcessorPipeline[TInput,
    TOutput](HubMixin)`, a generic function in `utils/io_utils.py`, and two aliases of types in
    `motors/motors_bus.py`. There, they get their older spelling.
    """
    absent("torchvision", "einops", "termcolor", "deepdiff")
    if sys.version_info >= (3, 12):
        return
    compile_source: Any = SourceFileLoader.source_to_code

    def generic(found: re.Match[str]) -> str:
        names = re.findall(r"(\w+)(?:: \w+)?", found["parameters"])
        variables = [f"{each} = __import__('typing').TypeVar('{each}')\n" for each in names]
        base = f"__import__('typing').Generic[{', '.join(names)}], " if found["class"] else ""
        return f"{''.join(variables)}{found['head']}({base}"

    def compile_older(self: SourceFileLoader, data: bytes, path: str) -> object:
        if "/lerobot/" in path:
            head = r"(?m)^(?P<head>(@\w+\n)*((?P<class>class)|def) \w+)\[(?P<parameters>.+?)\]\("
            text = re.sub(head, generic, data.decode())
            data = re.sub(r"(?m)^type (\w+) = ", r"\1 = ", text).encode()
        return compile_source(self, data, path)

    SourceFileLoader.source_to_code = compile_older


def batch() -> dict[str, Any]:
    """Return a success and a failure, with frames as LeRobot's datasets have them."""
    import torch

    paths = [str(DATA / CLIP.format(each)) for each in (RIGHT, WRONG)]
    clips = [decode_video(each, DecodeSpec(16, 200_704)) for each in paths]
    frames = torch.stack([torch.stack([*map(torch.tensor, clip.frames)]) for clip in clips])
    frames = frames.permute(0, 1, 4, 2, 3) / 255
    return {"observation.images.top": frames, "task": ["put the bowl on the stove"] * 2}


@in_process
def scored(url: str) -> dict[str, object]:
    """Return the rewards of the page's code, and the scores after saving and loading."""
    installed()
    from lerobot.configs.rewards import RewardModelConfig
    from lerobot.rewards.factory import make_reward_model, make_reward_pre_post_processors

    import rewardfleet.adapters.lerobot as rewardfleet_lerobot

    config = rewardfleet_lerobot.RewardFleetConfig(url=url, device="cpu", binary_reward=False)
    before, after = make_reward_pre_post_processors(config)
    model = make_reward_model(config)
    model.save_pretrained("saved")
    saved = RewardModelConfig.from_pretrained("saved")
    saved.pretrained_path, saved.binary_reward = "saved", True
    loaded = make_reward_model(saved)
    return {
        "scores": after(model.compute_reward(before(batch()))).tolist(),
        "rewards": loaded.compute_reward(batch()).tolist(),
        "types": [saved.type, type(loaded).__name__, loaded.is_trainable],
    }


@in_process
def without_service(url: str) -> list[str]:
    """Return the rewards by default, and the error with `on_failure=None`; warnings are shown."""
    installed()
    from lerobot.rewards.factory import make_reward_model

    import rewardfleet.adapters.lerobot as rewardfleet_lerobot

    options: Any = {"url": url, "device": "cpu", "timeout_s": 1}
    config = rewardfleet_lerobot.RewardFleetConfig(**options)
    found = [str(make_reward_model(config).compute_reward(batch()))]
    config = rewardfleet_lerobot.RewardFleetConfig(**options, on_failure=None)
    try:
        make_reward_model(config).compute_reward(batch())
    except Exception as error:
        found.append(error_of(error))
    return found


def test_clips_get_their_rewards_also_from_a_model_that_was_saved():
    with service_process("video") as (_, url):
        found = scored(url)
    assert found["scores"][0] > 0.5 > found["scores"][1]
    assert found["rewards"] == [1.0, 0.0]
    assert found["types"] == ["rewardfleet", "RewardFleetRewardModel", False]


def test_a_failure_is_nan_and_a_warning_or_raised(lost_url: str, capfd):
    rewards, error = without_service(lost_url)
    assert rewards == "tensor([nan, nan])"
    assert "no reward, nan is used instead" in capfd.readouterr().err
    assert error.startswith(UNREACHABLE)
