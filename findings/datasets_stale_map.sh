#!/usr/bin/env bash
# Version: datasets 5.2.0.
# Guess: map runs a reward function again after its source was changed, as the fingerprint of a
# result covers the function.
# Seen: a function that is imported from a module counts by its name only. After an edit of its
# file, a new process returns the rewards of the old source, from the cache on disk. A function of
# the main script counts by its code.
# Why it matters: a fix of a reward function has no effect on the data set that it scores, and
# moving it from the script into a module makes that so.
# Instead: pass load_from_cache_file=False, or fn_kwargs={'version': 2} with the version raised at
# each change.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'pyarrow==26.0.1'

export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
cat > score.py <<'PYTHON'
from datasets import disable_progress_bars, load_dataset
from rewards import imported

disable_progress_bars()
dataset = load_dataset("json", data_files="answers.jsonl", split="train")
fresh = dataset.map(imported, load_from_cache_file=False, new_fingerprint="fresh")
print("cached", dataset.map(imported)[0]["reward"], "fresh", fresh[0]["reward"])
PYTHON
echo '{"answer": 4}' > answers.jsonl

echo 'def imported(row): return {"reward": 0.0}' > rewards.py
before=$(venv/bin/python -B score.py 2> log)
echo 'def imported(row): return {"reward": 1.0}' > rewards.py
after=$(venv/bin/python -B score.py 2> log)
printf 'reward 0.0 in the source: %s\nreward 1.0 in the source: %s\n' "$before" "$after"

[ "$before" = "cached 0.0 fresh 0.0" ]
[ "$after" = "cached 0.0 fresh 1.0" ] || { echo "the change is noticed now" >&2; exit 1; }
