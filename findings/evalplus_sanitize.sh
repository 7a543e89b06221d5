#!/usr/bin/env bash
# Version: evalplus 0.3.1, tree-sitter 0.26.1, tree-sitter-python 0.25.0.
# Guess: sanitize(code, entrypoint) drops prose and unused code, and keeps all that the entry
# point needs.
# Seen: of the top level it keeps imports, classes, assignments to one name, and functions with a
# return statement. It drops decorated functions (lru_cache), generators, functions that change an
# argument, assignments to several names, and all statements of other kinds, such as
# sys.setrecursionlimit(...), try and if. There is no warning; the result compiles.
# Why it matters: a right program fails by NameError, mostly those with memoization or helpers.
# Instead: run the code as it was written; if you must cut it, run both forms and take the better
# one.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'tree-sitter==0.26.1' 'tree-sitter-python==0.25.0' 'datasets==5.2.0' \
    'appdirs==1.4.4' 'multipledispatch==1.0.0' 'tempdir==0.7.1' 'termcolor==3.3.0' 'wget==3.2'
venv/bin/pip install -q --no-deps 'evalplus==0.3.1'

venv/bin/python - <<'PYTHON'
from evalplus.sanitize import sanitize

CODE = '''
from functools import lru_cache

@lru_cache(None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def append(items, item):
    items.append(item)

def count(n):
    yield from range(n)

LOW, HIGH = 0, 10

def solve(n):
    items = []
    for each in count(n):
        append(items, fibonacci(each))
    return [item for item in items if LOW <= item <= HIGH]
'''
names = {}
exec(CODE, names)
print("as written:", names["solve"](6))
kept = sanitize(CODE, "solve")
print(kept)
names = {}
exec(kept, names)
lost = [name for name in ("fibonacci", "append", "count", "LOW", "HIGH") if name not in names]
print("lost:", lost)

assert "solve" in names
assert lost == ["fibonacci", "append", "count", "LOW", "HIGH"], "helpers are kept now"
PYTHON
