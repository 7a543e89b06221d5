#!/usr/bin/env bash
# Version: reasoning-gym 0.1.25.
# Guess: create_dataset(name, seed=7)[0] is the same item in every process, as the seed says.
# Seen: in at least five data sets it depends on PYTHONHASHSEED, which Python draws anew for each
# process: the questions of isomorphic_strings, ransom_note and polynomial_multiplication differ,
# and the listed answers of knight_swap and word_ladder.
# Why it matters: a worker that scores by data set, seed and index scores against another question
# than the one the policy saw, and a right answer earns next to nothing.
# Instead: send the whole entry along with the answer, or set PYTHONHASHSEED for all processes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'reasoning-gym==0.1.25'

cat > items.py <<'PYTHON'
import json

import reasoning_gym

CHANGING = "isomorphic_strings ransom_note polynomial_multiplication knight_swap word_ladder".split()
for name in [*CHANGING, "gcd"]:
    entry = reasoning_gym.create_dataset(name, size=3, seed=7)[0]
    print(name, json.dumps([entry["question"][-30:], entry["answer"][:60]]))
PYTHON
for seed in 1 2; do
    PYTHONHASHSEED=$seed venv/bin/python items.py > "seed-$seed"
    printf 'PYTHONHASHSEED=%s\n' "$seed"
    cat "seed-$seed"
done
PYTHONHASHSEED=1 venv/bin/python items.py | cmp - seed-1

changed=$(diff seed-1 seed-2 | grep -c '^<' || true)
echo "$changed of 6 items changed"
[ "$changed" = 5 ] || { echo "the hash seed has another effect now" >&2; exit 1; }
cmp <(grep gcd seed-1) <(grep gcd seed-2)
