#!/usr/bin/env bash
# Version: swebench 5.0.2; its parser is imported without the rest of the package, which is large.
# Guess: the cases of a parametrized test are told apart, or their results are combined.
# Seen: the name ends at the first space. test_add[one two] and test_add[one three] are one test,
# and the result that pytest prints last is its result: here a failure vanishes behind a success,
# and in the other order a success behind a failure.
# Why it matters: a patch that breaks a listed test is resolved, and the reward follows the order
# in which tests run.
# Instead: take results from a JUnit file, whose names are whole, or give cases ids without
# spaces.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'unidiff==1.0.1'
venv/bin/pip install -q --no-deps 'swebench==5.0.2'

venv/bin/python - <<'PYTHON'
import sys
import types
from pathlib import Path

(folder,) = Path("venv").glob("lib/*/site-packages/swebench")
package = types.ModuleType("swebench")  # skips the imports of the package itself
package.__path__ = [str(folder)]
sys.modules["swebench"] = package
harness = types.ModuleType("swebench.harness")
harness.__path__ = [str(folder / "harness")]
sys.modules["swebench.harness"] = harness

from swebench.harness.log_parsers.python import parse_log_pytest

failed = "FAILED test_sum.py::test_add[one two] - AssertionError"
passed = "PASSED test_sum.py::test_add[one three]"
last_passed = parse_log_pytest(f"{failed}\n{passed}\n", None)
last_failed = parse_log_pytest(f"{passed}\n{failed}\n", None)
print("the success is printed last:", last_passed)
print("the failure is printed last:", last_failed)

assert last_passed == {"test_sum.py::test_add[one": "PASSED"}, "names are whole now"
assert last_failed == {"test_sum.py::test_add[one": "FAILED"}
PYTHON
