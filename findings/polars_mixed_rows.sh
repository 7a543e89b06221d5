#!/usr/bin/env bash
# Version: polars 2.1.0.
# Guess: a DataFrame of rows whose values of one column differ in type keeps them, or raises an error.
# Seen: with infer_schema_length=None, which reads all rows first, a number in a list becomes an
# object if another row has an object there, under the first key of that one; outside of a list it
# becomes null. A number beside a text becomes a text, and so does an object in a list: '{1}',
# without its keys. Only an object beside a text, outside of a list, is an error.
# Why it matters: arguments of tests and of tool calls are other arguments then, and the rewards of
# right answers change with other rows of the table.
# Instead: store such values as JSON text.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'polars==2.1.0'

venv/bin/python - <<'PYTHON'
import polars


def kept(*values):
    rows = [{"a": each} for each in values]
    found = polars.DataFrame(rows, infer_schema_length=None)["a"].to_list()
    print(f"{list(values)} -> {found}")
    return found


assert kept([{"x": 1}], [3]) == [[{"x": 1}], [{"x": 3}]]
assert kept({"x": 1}, 3) == [{"x": 1}, None]
assert kept(1, "b") == ["1", "b"]
assert kept([{"x": 1}], ["b"]) == [["{1}"], ["b"]]
try:
    kept({"x": 1}, "b")
except polars.exceptions.PolarsError as error:
    print(f"an error: {str(error)[:60]}")
else:
    raise AssertionError("an object beside a text is kept now")
PYTHON
