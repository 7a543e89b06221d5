#!/usr/bin/env bash
# Version: verl 0.9.1; its reward function is loaded by file, as the package needs PyTorch.
# Guess: exact match of search_r1_like_qa_em tells -5 from 5, 3.5 from 35, and an empty answer
# from any.
# Seen: it removes all punctuation and then the words a, an and the, so -5 equals 5, 3.5 equals
# 35, $1.50 equals 150 and C++ equals C. If the right answer is the choice A, an empty answer is
# right.
# Why it matters: the normalization is that of questions about names. With numbers or choices it
# rewards wrong and missing answers.
# Instead: compare numbers as numbers, and choices as they are, before you fall back to it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --no-deps 'verl==0.9.1'

venv/bin/python - <<'PYTHON'
import importlib.util
from pathlib import Path


def load(name):
    (path,) = Path("venv").glob(f"lib/*/site-packages/verl/utils/reward_score/{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


exact_match = load("search_r1_like_qa_em")
EXPECTED = [
    ("-5", "5", 1),
    ("3.5", "35", 1),
    ("$1.50", "150", 1),
    ("C++", "C", 1),
    ("", "A", 1),
    ("B", "A", 0),
    ("6", "5", 0),
]
for answer, right, expected in EXPECTED:
    score = exact_match.em_check(answer, right)
    print(f"answer {answer!r}, right {right!r}: {score}")
    assert score == expected, "this answer is told from the right one now"
reward = exact_match.compute_score("<answer></answer>", {"target": ["A"]})
print("reward of an empty answer, where A is right:", reward)
assert reward == 1, "an empty answer is wrong now"
PYTHON
