#!/usr/bin/env bash
# Version: datasets 5.2.0, numpy 2.4.6.
# Guess: with_format('numpy') gives a float64 column as float64.
# Seen: one row gives float64, and several rows give float32. So the same cell has two values, and
# a batched map over this format writes the rounded one back into a float64 column.
# Why it matters: times in seconds since 1970 are rounded to 128 seconds, and rewards of one row
# and of a batch differ.
# Instead: with_format('numpy', dtype=numpy.float64), or with_format('arrow').
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'pyarrow==26.0.1' 'numpy==2.4.6'

export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
venv/bin/python - <<'PYTHON'
import numpy
from datasets import Dataset, disable_progress_bars

disable_progress_bars()
dataset = Dataset.from_dict({"time": [1700000000.25, 1700000050.5]})
in_numpy = dataset.with_format("numpy")
row, batch = in_numpy[1]["time"], in_numpy[:]["time"]
print("a row:", row.dtype, float(row))
print("a batch:", batch.dtype, batch.tolist())
copied = in_numpy.map(lambda rows: {"copy": rows["time"]}, batched=True).with_format(None)
print("written back by map:", copied[1])
typed = dataset.with_format("numpy", dtype=numpy.float64)[:]["time"]
print("with a dtype:", typed.dtype, typed.tolist())

assert row.dtype == numpy.float64 and float(row) == 1700000050.5
assert batch.dtype == numpy.float32 and batch[0] == batch[1], "batches are exact now"
assert copied[1] == {"time": 1700000050.5, "copy": 1700000000.0}
assert typed.tolist() == [1700000000.25, 1700000050.5]
PYTHON
