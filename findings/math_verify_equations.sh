#!/usr/bin/env bash
# Version: math-verify 0.9.0, latex2sympy2_extended 1.11.0, sympy 1.14.0.
# Guess: two equations are equal if they say the same; what cannot be read gives an empty parse.
# Seen: f(2) = 7 equals f(9) = 4, and a derivative equals its reciprocal. Of a congruence only the
# modulus is read, of a sum of unit vectors the first term. Capital letters are small ones, so the
# area of the circle of radius R is that of r, and R - r is its own opposite. An interval equals the
# set of its ends.
# Why it matters: an answer that is wrong in what was asked earns the reward, in both orders of the
# arguments of verify.
# Instead: compare what parse returns with the text: each letter, and each sign of equality, must be
# in it. Check equations by evaluating both sides.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'math-verify==0.9.0' 'latex2sympy2_extended==1.11.0' 'sympy==1.14.0' \
    'antlr4-python3-runtime==4.13.2'

venv/bin/python - <<'PYTHON'
from math_verify import parse, verify

DIFFERENT = [  # gold answer, and another one
    ("f(2) = 7", "f(9) = 4"),
    (r"\frac{dy}{dx} = 2x", r"\frac{dx}{dy} = 2x"),
    (r"x \equiv 3 \pmod 5", r"x \equiv 2 \pmod 5"),
    (r"2\mathbf{i} - 3\mathbf{j}", r"2\mathbf{i} + 3\mathbf{j}"),
    (r"\pi r^2", r"\pi R^2"),
    ("R - r", "r - R"),
    (r"\{1, 2\}", "(1, 2)"),
]
for gold, answer in DIFFERENT:
    right, given = parse(f"${gold}$"), parse(f"${answer}$")
    print(f"{gold} equals {answer}: {verify(right, given)}; read as {right[0]} and {given[0]}")
    assert verify(right, given) and verify(given, right), "they differ now"
PYTHON
