#!/usr/bin/env bash
# Version: duckdb 2.0.1, polars 2.1.0.
# Guess: a column of whole numbers in which a fraction appears late becomes a column of floats, or
# raises an error.
# Seen: the type is taken from the first rows (20,480 in DuckDB, 100 in Polars), and later
# fractions are cast to it without a word. DuckDB's read_json makes 0.5 and 0.9 to 0 and 1, so it
# rounds; polars.DataFrame of a list of dicts makes both 0, so it cuts. polars.read_ndjson of the
# same rows raises an error.
# Why it matters: rewards are 0 and 1 until the first partial credit of a run. From then on the
# log holds fractions, and the analysis does not.
# Instead: write rewards as floats (1.0), or name the type: columns={...} in DuckDB,
# schema_overrides in Polars.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'duckdb==2.0.1' 'polars==2.1.0'

venv/bin/python - <<'PYTHON'
import json

import duckdb
import polars

rows = [{"reward": 1}] * 60_000 + [{"reward": 0.5}, {"reward": 0.9}]
with open("rewards.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

in_duckdb = duckdb.sql("SELECT reward FROM read_json('rewards.jsonl')").fetchall()[-2:]
typed = "read_json('rewards.jsonl', columns = {'reward': 'DOUBLE'})"
print("DuckDB:", in_duckdb, "with a type:", duckdb.sql(f"SELECT reward FROM {typed}").fetchall()[-2:])
in_polars = polars.DataFrame(rows)["reward"].to_list()[-2:]
print("Polars, list of dicts:", in_polars)
try:
    polars.read_ndjson("rewards.jsonl")
    raised = False
except polars.exceptions.ComputeError as error:
    raised = True
    print("Polars, read_ndjson:", error)

assert in_duckdb == [(0,), (1,)], "DuckDB keeps the fractions now"
assert in_polars == [0, 0], "Polars keeps the fractions now"
assert raised
PYTHON
