"""The static types of both clients, checked by mypy, and the generated stub."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import DATA

ROOT = Path(__file__).parent.parent.parent

#: Lines with a comment must be errors of this code; all other lines must be accepted.
PROGRAM = (DATA / "client" / "typed_calls.txt").read_text()


@pytest.mark.slow
def test_mypy_accepts_correct_calls_and_rejects_wrong_arguments(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        (int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]"))
        for line in done.stdout.splitlines()
        if ": error: " in line
    }
    expected = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert found == expected, done.stdout + done.stderr
