#!/usr/bin/env bash
# Version: duckdb 2.0.1.
# Guess: whole numbers that fit into 64 bits are whole numbers in Parquet that DuckDB copies from
# JSON lines.
# Seen: a field with 0 or a positive number in one row and a negative one in another, e.g. 0 and -1,
# is read as HUGEINT, also within lists and objects, and a copy to Parquet stores HUGEINT as DOUBLE.
# Numbers are floats then, and over 2**53 they are rounded. With positive numbers only, or with
# negative ones only, they stay whole.
# Why it matters: a program that gets -1.0 for -1 fails at range() or as an index, and ids are other
# ids. Which rows are concerned depends on signs in other rows.
# Instead: name the columns in read_json, or cast them to BIGINT before the copy.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'duckdb==2.0.1'

venv/bin/python - <<'PYTHON'
import json

import duckdb


def copied(name, *rows):
    with open(f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)
    read = f"read_json_auto('{name}.jsonl')"
    kinds = duckdb.sql(f"select distinct typeof(a) from {read}").fetchall()
    duckdb.sql(f"copy (select a from {read}) to '{name}.parquet' (format parquet)")
    found = [each for each, in duckdb.sql(f"from '{name}.parquet'").fetchall()]
    print(f"{name}: {rows} is {kinds}, in Parquet {found}")
    return repr(found)


assert copied("mixed", {"a": 0}, {"a": -1}) == "[0.0, -1.0]"
assert copied("large", {"a": 2**53 + 1}, {"a": -1}) == "[9007199254740992.0, -1.0]"
assert copied("nested", {"a": [{"b": 0}, {"b": -1}]}) == "[[{'b': 0.0}, {'b': -1.0}]]"
assert copied("positive", {"a": 2**53 + 1}, {"a": 1}) == "[9007199254740993, 1]"
assert copied("negative", {"a": -2}, {"a": -1}) == "[-2, -1]"
PYTHON
