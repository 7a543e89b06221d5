#!/usr/bin/env bash
# Version: json-repair 0.64.4.
# Guess: two JSON objects, one per line, become a list of two objects, whatever they hold.
# Seen: objects that have the same keys and types are taken for updates of one object, and only
# the last one stays, as a dict and not as a list. If one object has one key more, both stay.
# Why it matters: parallel tool calls of one tool vanish, and the reward judges only the last.
# Instead: split the lines first and parse each by itself; repair only a line that json.loads
# refuses.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'json-repair==0.64.4'

venv/bin/python - <<'PYTHON'
import json_repair

first = '{"name": "search", "arguments": {"q": "cats"}}'
second = '{"name": "search", "arguments": {"q": "dogs"}}'
longer = '{"name": "search", "arguments": {"q": "dogs", "limit": 5}}'

same_keys = json_repair.loads(f"{first}\n{second}")
other_keys = json_repair.loads(f"{first}\n{longer}")
print("two calls with the same keys:", same_keys)
print("two calls with other keys:", other_keys)

assert same_keys == {"name": "search", "arguments": {"q": "dogs"}}, "both calls are kept now"
assert isinstance(other_keys, list) and len(other_keys) == 2
PYTHON
