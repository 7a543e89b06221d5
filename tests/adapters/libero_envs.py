"""Environments, judges and the example's stand-in, for the tests of the LIBERO adapter."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
from gymnasium import spaces

from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.judges import Judgment

from ..conftest import served

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data" / "libero"
SIZE = 32


def load_example(name: str) -> ModuleType:
    """Import a module of `examples/`, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class SeeingJudge(FakeJudge):
    """Stores the levels and the rate of each clip by task; the score is the last level / 100."""

    def __init__(self, **options):
        super().__init__(deterministic=False, **options)
        self.clips: dict[str, list[list[int]]] = {}
        self.rates: dict[str, list[float]] = {}

    async def judge(self, task_text: str, clip, backend_kwargs: Mapping) -> Judgment:
        levels = [int(frame[-1, -1, 0]) for frame in clip.frames]
        self.clips.setdefault(task_text, []).append(levels)
        self.rates.setdefault(task_text, []).append(clip.fps)
        judgment = await super().judge(task_text, clip, backend_kwargs)
        if judgment.score is None:
            return judgment
        return Judgment(levels[-1] / 100, judgment.text)


class GatedJudge(SeeingJudge):
    """Answers a task once it is among `released`."""

    def __init__(self):
        super().__init__()
        self.released: set[str] = set()

    async def judge(self, task_text: str, clip, backend_kwargs: Mapping) -> Judgment:
        while task_text not in self.released:
            await asyncio.sleep(0.002)
        return await super().judge(task_text, clip, backend_kwargs)


@contextmanager
def judged_by(judge: FakeJudge, **settings) -> Iterator[dict[str, object]]:
    """Serve a judge; yield the configuration of a client."""
    with served(judge, **settings) as client:
        yield {"enable": True, "endpoint": f"{client.base_url}/score", "timeout": 60}


def gray(level: int, size: int = SIZE) -> np.ndarray:
    """Return an image as LIBERO's camera does, upside down: its first row is at the bottom."""
    image = np.zeros((size, size, 3), np.uint8)
    image[:, :, 1] = 7
    image[0] = level
    return image


class CountingEnv(gymnasium.Env):
    """Its episodes take `lengths` steps; the level of a frame is 10 x episode + step + 1."""

    def __init__(self, lengths: list[int], task: str = "count"):
        image = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space = spaces.Dict({"pixels": spaces.Dict({"image": image})})
        self.action_space = spaces.Discrete(2)
        self._lengths, self._task, self._episode = lengths, task, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observation(), {"task_descriptions": f"{self._task} {self._episode}"}

    def step(self, action):
        self._step += 1
        done = self._step == self._lengths[self._episode % len(self._lengths)]
        truncated = done and self._episode % 2 == 1
        return self._observation(), 1.0, done and not truncated, truncated, {}

    def _observation(self):
        return {"pixels": {"image": gray(10 * self._episode + self._step + 1)}}


def levels_of(episode: int, length: int) -> list[int]:
    """Return the levels of all frames of an episode of `CountingEnv`."""
    return [10 * episode + step + 1 for step in range(length + 1)]
