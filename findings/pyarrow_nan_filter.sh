#!/usr/bin/env bash
# Version: pyarrow 26.0.1.
# Guess: reading a Parquet file with a filter gives the rows that filtering the table in memory
# gives, however the file is cut into row groups.
# Seen: row groups are judged by their minimum and maximum, which leave NaN out. Where the numbers
# of a group are all equal, e.g. 0.0, the group counts as constant, and is_nan finds no row in it.
# Not (reward <= 1), which should find NaN as well, finds none where the maximum is at most 1.
# Why it matters: the check for rewards that are NaN reports none in groups where all rollouts
# failed, and its result changes with the batch size of the writer.
# Instead: read the column and filter in memory, or write missing rewards as null.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pyarrow==26.0.1'

venv/bin/python - <<'PYTHON'
import pyarrow
import pyarrow.compute
import pyarrow.parquet

nan = float("nan")
table = pyarrow.table({"reward": [0.0, nan, 0.0, nan, 1.0, nan], "row": [0, 1, 2, 3, 4, 5]})
reward = pyarrow.compute.field("reward")


def rows(filter):
    """The rows that a filter finds in memory, and in files by the size of their groups."""
    found = {"memory": table.filter(filter)["row"].to_pylist()}
    for size in (1, 2, 6):
        pyarrow.parquet.write_table(table, "rewards.parquet", row_group_size=size)
        read = pyarrow.parquet.read_table("rewards.parquet", filters=filter)
        found[size] = read["row"].to_pylist()
    return found


is_nan = rows(pyarrow.compute.is_nan(reward))
not_in_range = rows(~(reward <= 1.0))
print("is_nan, by rows in a group:", is_nan)
print("not (reward <= 1), by rows in a group:", not_in_range)

nans = [1, 3, 5]
assert is_nan == {"memory": nans, 1: nans, 2: [], 6: nans}, "is_nan finds other rows now"
assert not_in_range == {"memory": nans, 1: nans, 2: [], 6: []}, "it finds other rows now"
PYTHON
