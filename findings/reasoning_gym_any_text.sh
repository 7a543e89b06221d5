#!/usr/bin/env bash
# Version: reasoning-gym 0.1.25.
# Guess: game_of_life_halting has answers True and False, and a wrong one scores 0.
# Seen: score_answer compares bool(answer) with bool(entry['answer']). Both are texts, and every
# text that is not empty is true, so every answer scores 1.0: True where False is right, and 'no
# idea' too.
# Why it matters: the policy earns the full reward for anything, which also hides in the mean of a
# mix of tasks.
# Instead: leave this data set out, or compare the stripped texts. Before training on an
# environment, score a wrong answer to each of its tasks.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'reasoning-gym==0.1.25'

venv/bin/python - <<'PYTHON'
import reasoning_gym

dataset = reasoning_gym.create_dataset("game_of_life_halting", size=8, seed=7)
for entry in dataset:
    answers = ("True", "False", "no idea")
    scores = [dataset.score_answer(answer, entry) for answer in answers]
    print(f"right: {entry['answer']!r}", dict(zip(answers, scores)))
    assert scores == [1.0, 1.0, 1.0], "wrong answers are told apart now"
assert {entry["answer"] for entry in dataset} == {"True", "False"}
PYTHON
