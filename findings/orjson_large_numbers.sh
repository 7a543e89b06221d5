#!/usr/bin/env bash
# Version: orjson 3.13.0; msgspec 0.22.0 for comparison.
# Guess: orjson.loads refuses whole numbers over 64 bits, as orjson.dumps does.
# Seen: it returns floats, without a word. json and msgspec return the exact number.
# Why it matters: expected outputs of tests of programs (factorials, products, Fibonacci numbers)
# lose digits as they are loaded, so the right program fails. Two different numbers become equal,
# so a wrong one may pass.
# Instead: load what holds answers by json or msgspec, or carry numbers as texts.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'orjson==3.13.0' 'msgspec==0.22.0'

venv/bin/python - <<'PYTHON'
import json

import msgspec
import orjson

text = "[18446744073709551615, 18446744073709551617, 18446744073709551619]"
loaded = orjson.loads(text)
print("orjson:", loaded)
print("json:", json.loads(text))
try:
    orjson.dumps(json.loads(text))
    refused = False
except orjson.JSONEncodeError as error:
    refused = True
    print("orjson.dumps:", error)

assert json.loads(text) == msgspec.json.decode(text) == [2**64 - 1, 2**64 + 1, 2**64 + 3]
assert list(map(type, loaded)) == [int, float, float], "large numbers are exact or refused now"
assert loaded[1] == loaded[2]
assert refused
PYTHON
