#!/usr/bin/env bash
# Version: gymnasium 1.4.0, numpy 2.4.6.
# Guess: a vector environment joins the infos of its environments into an array that fits all
# values: 0 and 0.7 become [0.0, 0.7].
# Seen: the type of the first value is the type of the array, and the others are cast to it. 0 and
# 0.7 become [0, 0]; 0.7 and 0 become [0.7, 0.0]; False and 0.7 become [False, True]. There is no
# warning.
# Why it matters: a progress or a partial score in info is lost whenever a lower-numbered
# environment reports a whole number in that step. The order of the environments decides.
# Instead: report floats from every environment in every step: float(progress), never 0 or False.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'gymnasium==1.4.0' 'numpy==2.4.6'

venv/bin/python - <<'PYTHON'
import gymnasium
import numpy


class Progress(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, progress):
        self.progress = progress

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(1, numpy.float32), {"progress": self.progress}


def joined(*values):
    makers = [lambda value=value: Progress(value) for value in values]
    _, info = gymnasium.vector.SyncVectorEnv(makers).reset()
    print(f"{values} -> {info['progress'].tolist()}")
    return info["progress"].tolist()


assert joined(0.7, 0) == [0.7, 0.0]
assert joined(0.0, 0.7) == [0.0, 0.7]
assert joined(0, 0.7) == [0, 0], "0.7 is kept now"
assert joined(False, 0.7) == [False, True], "0.7 is kept now"
PYTHON
