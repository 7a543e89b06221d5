#!/usr/bin/env bash
# Version: reasoning-gym 0.1.25.
# Guess: the default score_answer, which 33 data sets use, is 1.0 for the right answer, perhaps
# less for one with text around it, and 0 for a wrong number.
# Seen: it is len(right) / len(answer) if the right text occurs anywhere in the answer. If 2 is
# right, 12, 20 and -2 score 0.5. The right answer with a line feed scores 0.5 as well.
# Why it matters: wrong numbers that contain the digit earn as much as a right one whose end was
# not stripped, and an answer that is right in a sentence earns less than both.
# Instead: strip answers, and count a score below 1 as 0 where the answer is a number.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'reasoning-gym==0.1.25'

venv/bin/python - <<'PYTHON'
import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

dataset = reasoning_gym.create_dataset("gcd", size=20, seed=1)
entry = next(entry for entry in dataset if entry["answer"] == "2")
answers = ("2", "12", "20", "-2", "2\n", "The answer is 2", "3")
scores = {answer: round(dataset.score_answer(answer, entry), 3) for answer in answers}
print(scores)
default = ProceduralDataset.score_answer
print(sum(kind.score_answer is default for kind, _ in DATASETS.values()), "data sets score so")

assert scores["2"] == 1.0 and scores["3"] == 0.0
assert scores["12"] == scores["20"] == scores["-2"] == 0.5, "wrong numbers score 0 now"
assert scores["2\n"] == 0.5, "answers are stripped now"
assert scores["The answer is 2"] == 0.067
PYTHON
