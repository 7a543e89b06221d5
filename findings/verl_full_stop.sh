#!/usr/bin/env bash
# Version: verl 0.9.1; its reward functions are loaded by file, as the package needs PyTorch.
# Guess: a full stop after the answer costs nothing: '#### 42.' is 42.
# Seen: the pattern of gsm8k takes the full stop into the number, and '42.' is compared with '42'
# as text: reward 0, by both methods, strict and flexible. A comma is stripped by one of the two.
# math_dapo gives -1 to 'Answer: 42.' and to a bold '**Answer:** 42'.
# Why it matters: models that write sentences lose the reward, and training teaches them to drop
# the full stop first.
# Instead: strip full stops and asterisks from the end and the beginning of the answer before you
# score.
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


gsm8k, dapo = load("gsm8k"), load("math_dapo")
seen = {}
for text in ("#### 42", "#### 42.", "#### 42,", "The answer is 42", "The answer is 42."):
    methods = ("strict", "flexible")
    seen[text] = [float(gsm8k.compute_score(text, "42", method=each)) for each in methods]
    print(f"gsm8k, strict and flexible, {text!r}: {seen[text]}")
for text in ("Answer: 42", "Answer: 42.", "**Answer:** 42"):
    seen[text] = dapo.compute_score(text, "42")["score"]
    print(f"math_dapo, {text!r}: {seen[text]}")

assert seen["#### 42"] == [1, 1] and seen["The answer is 42"] == [0, 1] and seen["Answer: 42"] == 1
assert seen["#### 42."] == [0, 0] and seen["The answer is 42."] == [0, 0], "it is stripped now"
assert seen["#### 42,"] == [1, 0]
assert seen["Answer: 42."] == seen["**Answer:** 42"] == -1, "math_dapo strips it now"
PYTHON
