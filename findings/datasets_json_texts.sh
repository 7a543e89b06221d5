#!/usr/bin/env bash
# Version: datasets 5.2.0, pyarrow 26.0.1.
# Guess: in a column of the type Json, which is for values of different types, each value is what
# it was: load_dataset of JSON lines, and from_list with on_mixed_types="use_json".
# Seen: a text that is itself JSON becomes what it stands for: '1' a number, 'true' a truth value,
# 'null' None, '{"b": 1}' an object. So it is with the items of a list and the fields of an object
# whose types differ. Texts that are no JSON stay, and so do texts within a value that is stored as
# a whole, and all texts of a column that has texts only.
# Why it matters: an expected answer '1' in one row is the number 1 as soon as another row expects a
# number, and an argument or an answer 'null' is missing. The rewards of right answers change
# with other rows of the data set.
# Instead: store such values as JSON text in a column of texts, and decode them where they are used.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'pyarrow==26.0.1'

export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
venv/bin/python - <<'PYTHON'
import json

from datasets import Dataset, disable_progress_bars, load_dataset

disable_progress_bars()


def loaded(name, *values):
    rows = [{"answer": each} for each in values]
    with open(f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)
    lines = load_dataset("json", data_files=f"{name}.jsonl", split="train")[:]["answer"]
    listed = Dataset.from_list(rows, on_mixed_types="use_json")[:]["answer"]
    print(f"{name}: {list(values)} -> {lines}, {listed}")
    assert repr(lines) == repr(listed)
    return lines


assert loaded("number", "1", 2) == [1, 2]
assert loaded("truth", "true", False) == [True, False]
assert loaded("null", "null", 3) == [None, 3]
assert loaded("object", '{"b": 1}', {"c": 2}) == [{"b": 1}, {"c": 2}]
assert loaded("field", {"x": "1"}, {"x": 2}) == [{"x": 1}, {"x": 2}]
assert loaded("items", ["1", 2]) == [[1, 2]]
assert loaded("whole", {"x": ["1"]}, "a") == [{"x": ["1"]}, "a"]
assert loaded("texts", "1", "null") == ["1", "null"]
PYTHON
