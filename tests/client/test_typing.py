"""The static types of both clients, checked by mypy, and the generated stub."""

import sys
from pathlib import Path

import pytest

from ..conftest import DATA
from ..running import output_of

ROOT = Path(__file__).parent.parent.parent

#: Lines with a comment must be errors of this code; all other lines must be accepted.
PROGRAM = (DATA / "client" / "typed_calls.txt").read_text()


@pytest.mark.slow
def test_mypy_accepts_correct_calls_and_rejects_wrong_arguments(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = (sys.executable, "-m", "mypy", "--strict", "--no-pretty", program)
    printed = output_of(*command, cwd=ROOT, status=1, seconds=170)
    found = {
        (int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]"))
        for line in printed.splitlines()
        if ": error: " in line
    }
    expected = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert found == expected, printed
