#!/usr/bin/env bash
# Version: math-verify 0.9.0, latex2sympy2_extended 1.11.0, sympy 1.14.0.
# Guess: common notation is either read right or gives an empty parse: 1e3 is 1000, 0.\overline{3}
# is 1/3, 1\,000 is 1000, the base of 101_2 counts.
# Seen: 1e3 in math is 1 times Euler's number times 3, and outside of math it is 1. 0.\overline{3}
# and 1\,000 are 0. The base of a number is dropped. So right answers do not match, and wrong ones
# do: 0.\overline{3} equals 0.\overline{7}, 1\,000 equals 2\,000, 101_2 equals 101_3.
# Why it matters: the reward depends on how a number is written, in both directions.
# Instead: rewrite such notation in gold answers and answers before parse; print what parse makes
# of the gold answers, and drop the rows that it misreads.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'math-verify==0.9.0' 'latex2sympy2_extended==1.11.0' 'sympy==1.14.0' \
    'antlr4-python3-runtime==4.13.2'

venv/bin/python - <<'PYTHON'
from math_verify import parse, verify

EXPECTED = [  # gold answer, answer, what verify should say, what it says
    (r"$1000$", r"$1e3$", True, False),
    (r"$0.002$", "2e-3", True, False),
    (r"$\frac{1}{3}$", r"$0.\overline{3}$", True, False),
    (r"$1000$", r"$1\,000$", True, False),
    (r"$0.\overline{3}$", r"$0.\overline{7}$", False, True),
    (r"$1\,000$", r"$2\,000$", False, True),
    (r"$101_2$", r"$101_3$", False, True),
]
for gold, answer, right, expected in EXPECTED:
    seen = verify(parse(gold), parse(answer))
    print(f"{gold} equals {answer}: {seen}, should be {right}; read as {parse(answer)[0]}")
    assert seen == expected, "this notation is read in another way now"
PYTHON
