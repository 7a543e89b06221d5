#!/usr/bin/env bash
# Version: pytest 9.2.0.
# Guess: what pytest.skip and pytest.fail raise is found by its class in _pytest.outcomes, and can
# be sent between processes, like AssertionError.
# Seen: both classes say that they are of `builtins`, where nothing has their names. So they cannot
# be pickled, and the reason is lost on its way out of a process pool.
# Why it matters: a judge of programs that runs tests in worker processes sees an error of its own
# instead of a test that failed or left itself out, and one that looks at `__module__` and
# `__qualname__` takes them for exceptions of the program.
# Instead: compare with `pytest.skip.Exception` and `pytest.fail.Exception` in the process that ran
# the test, and send texts.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'pytest==9.2.0'

cat >outcomes.py <<'PYTHON'
import builtins
import pickle

import _pytest.outcomes
import pytest

for end in (pytest.skip, pytest.fail):
    try:
        end("the reason")
    except end.Exception as error:
        kind = type(error)
        print(kind.__module__, kind.__qualname__, isinstance(error, Exception))
        assert getattr(_pytest.outcomes, kind.__qualname__) is kind
        assert kind.__module__ == "builtins", "the class names its module now"
        assert not hasattr(builtins, kind.__qualname__)
        try:
            pickle.dumps(error)
        except pickle.PicklingError as refused:
            print(refused)
        else:
            raise SystemExit("it can be pickled now")
pickle.dumps(AssertionError("the reason"))
PYTHON
venv/bin/python outcomes.py
