#!/usr/bin/env bash
# Version: areal 1.0.4; its reward_api is loaded by file, as the package needs PyTorch.
# Guess: the limit of 15 s is for one call of the reward function, and a call that is late is an
# error.
# Seen: the limit includes the wait for a free process, of which there are few, often one. A call
# that is late is repeated three times, while the late ones go on in the process; then the reward
# is 0. Four calls of 1 s each, by one process and with a limit of 1.5 s: three get 0.
# Why it matters: right answers are trained on as wrong ones, the more of them the larger the batch.
# Instead: replace `async_reward_fn` of the workflow by a coroutine function that has its own
# deadline and raises; AReaL rejects the group.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --no-deps --ignore-requires-python 'areal==1.0.4'

cat >run.py <<'PYTHON'
import asyncio
import importlib.util
import logging
import sys
import time
from pathlib import Path
from types import ModuleType


def nap(seconds):
    time.sleep(seconds)
    return 1.0


async def rewards(function):
    return await asyncio.gather(*(function(1.0) for _ in range(4)))


if __name__ == "__main__":
    sys.modules["areal"] = ModuleType("areal")
    sys.modules["areal.utils"] = ModuleType("areal.utils")
    sys.modules["areal.utils"].logging = logging
    (path,) = Path("venv").glob("lib/*/site-packages/areal/api/reward_api.py")
    spec = importlib.util.spec_from_file_location("reward_api", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrapper = module.AsyncRewardWrapper(nap, timeout_seconds=1.5, max_workers=1)
    found = asyncio.run(rewards(wrapper))
    print(found)
    assert 0 in found, "the wait does not count, or a late call is an error now"
PYTHON
venv/bin/python run.py
