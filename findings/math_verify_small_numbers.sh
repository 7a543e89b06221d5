#!/usr/bin/env bash
# Version: math-verify 0.9.0, latex2sympy2_extended 1.11.0, sympy 1.14.0.
# Guess: float_rounding=6, the default of verify, compares six significant digits, so numbers that
# differ by fourteen orders of magnitude differ.
# Seen: it rounds to six decimals. All numbers below 5e-7 round to 0 and equal one another:
# Planck's constant equals the charge of an electron.
# Why it matters: in physics and chemistry, any tiny answer earns the reward of the right one.
# Instead: scale the gold answer and the answer to the order of 1 before verify, or compare float
# values by relative error.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'math-verify==0.9.0' 'latex2sympy2_extended==1.11.0' 'sympy==1.14.0' \
    'antlr4-python3-runtime==4.13.2'

venv/bin/python - <<'PYTHON'
from math_verify import parse, verify

planck, charge = r"$6.63 \times 10^{-34}$", r"$1.6 \times 10^{-19}$"
equal = verify(parse(planck), parse(charge))
print(f"{planck} equals {charge}: {equal}")
decimals = verify(parse("$0.0000001$"), parse("$0.0000004$"))
print(f"0.0000001 equals 0.0000004: {decimals}")
large = verify(parse(r"$6.63 \times 10^{34}$"), parse(r"$1.6 \times 10^{19}$"))
print(f"with positive exponents: {large}")

assert equal and decimals, "small numbers are told apart now"
assert not large
PYTHON
