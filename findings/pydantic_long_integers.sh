#!/usr/bin/env bash
# Version: pydantic 2.14.4, which pins pydantic-core.
# Guess: JSON integers of any length are read, or at least as many digits as Python's own limit
# allows; `sys.set_int_max_str_digits(0)`, which lifts that limit, holds for them as well.
# Seen: more than 4300 digits are "Invalid JSON: number out of range", also after the limit was
# lifted, and also in a field that takes any value. What pydantic has written it cannot read back.
# `json.loads` reads both.
# Why it matters: FastAPI reads bodies by it in models: a request with a long integer, such as the
# expected output 3**12000 of a test, is refused as no JSON at all.
# Instead: after such an error, `json.loads` and `validate_python`; or send long integers as texts.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pydantic==2.14.4'

venv/bin/python - <<'PYTHON' | tee seen
import json
import sys
from typing import Any

from pydantic import TypeAdapter, ValidationError

sys.set_int_max_str_digits(0)
for kind in (int, Any):
    adapter = TypeAdapter(kind)
    for digits in (4300, 4301):
        value = 10 ** (digits - 1)
        body = adapter.dump_json(value)
        assert json.loads(body) == value
        try:
            seen = adapter.validate_json(body) == value
        except ValidationError as error:
            seen = error.errors()[0]["msg"]
        print(kind.__name__ if kind is int else "Any", digits, seen)
PYTHON

diff seen - <<'SEEN'
int 4300 True
int 4301 Invalid JSON: number out of range at line 1 column 4301
Any 4300 True
Any 4301 Invalid JSON: number out of range at line 1 column 4301
SEEN
