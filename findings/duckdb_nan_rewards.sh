#!/usr/bin/env bash
# Version: duckdb 2.0.1, pyarrow 26.0.1.
# Guess: reward > 0.5 leaves out NaN, as in Python, NumPy, pandas and Arrow, or keeps it always.
# Seen: in DuckDB NaN is greater than every number, so a filter for good rewards keeps it in
# memory. From a Parquet file it keeps it only where the row group has a large enough number too,
# or nothing but NaN, because the maximum of the group leaves NaN out: the same rows give one
# count or another by how they were written.
# Why it matters: picking the best rollouts picks those without a reward, some of them.
# Instead: write missing rewards as null, or add AND NOT isnan(reward).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'duckdb==2.0.1' 'pyarrow==26.0.1'

venv/bin/python - <<'PYTHON'
import duckdb
import pyarrow
import pyarrow.parquet

nan = float("nan")
table = pyarrow.table({"reward": [0.0, nan, 1.0, nan], "row": [0, 1, 2, 3]})
query = "SELECT row FROM {} WHERE reward > 0.5 ORDER BY row"


def rows(source):
    return [row for (row,) in duckdb.sql(query.format(source)).fetchall()]


by_size = {}
for size in (1, 2, 4):
    pyarrow.parquet.write_table(table, "rewards.parquet", row_group_size=size)
    by_size[size] = rows("'rewards.parquet'")
duckdb.sql("CREATE TABLE rewards AS FROM 'rewards.parquet'")
in_memory = rows("rewards")
print("rows of NaN: 1 and 3; of a reward over 0.5: 2")
print("in a table:", in_memory)
print("from Parquet, by rows in a group:", by_size)

assert in_memory == [1, 2, 3], "NaN is left out now"
assert by_size[2] == [2, 3] and by_size[4] == [1, 2, 3], "row groups make another difference now"
PYTHON
