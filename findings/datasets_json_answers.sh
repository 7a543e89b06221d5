#!/usr/bin/env bash
# Version: datasets 5.2.0, pyarrow 26.0.1.
# Guess: load_dataset of JSON lines keeps texts as texts, and large whole numbers exact, or raises
# an error.
# Seen: if all texts of a column look like dates, they become datetime objects, and with the type
# string in features they are '2024-01-05 00:00:00'. One other text in the column keeps them all
# as they are. A whole number over 64 bits makes the column float and is rounded, and one fraction
# in the column rounds whole numbers over 2**53.
# Why it matters: no answer equals the expected answer '2024-01-05' any more, and no program that
# prints 18446744073709551617 is right.
# Instead: read the lines by json.loads and build the data set by Dataset.from_list, or store
# Parquet; write large numbers as texts.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0' 'pyarrow==26.0.1'

export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
venv/bin/python - <<'PYTHON'
from datasets import Dataset, Features, Value, disable_progress_bars, load_dataset

disable_progress_bars()


def loaded(name, *lines, **options):
    with open(f"{name}.jsonl", "w") as file:
        file.writelines(f'{{"answer": {line}}}\n' for line in lines)
    data = load_dataset("json", data_files=f"{name}.jsonl", split="train", **options)
    print(f"{name}: {lines} -> {data[:]['answer']}")
    return data[:]["answer"]


dates = loaded("dates", '"2024-01-05"', '"2024-01-06"')
mixed = loaded("dates and a text", '"2024-01-05"', '"none"')
large = loaded("over 64 bits", "18446744073709551617", "3")
exact = loaded("over 53 bits", "9007199254740993", "0.5")
features = Features({"answer": Value("string")})
typed = loaded("dates with a type", '"2024-01-05"', features=features)
listed = Dataset.from_list([{"answer": "2024-01-05"}])[:]["answer"]

assert str(dates[0]) == "2024-01-05 00:00:00", "texts stay texts now"
assert mixed == ["2024-01-05", "none"] and typed == ["2024-01-05 00:00:00"]
assert listed == ["2024-01-05"]
assert large == [1.8446744073709552e19, 3.0], "large numbers are kept now"
assert exact == [9007199254740992.0, 0.5]
PYTHON
