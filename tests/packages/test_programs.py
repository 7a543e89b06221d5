"""Programs of popular packages print in a jail what they print at home.

The slice is the first 40 programs at one level. `REWARDFLEET_PYTHON` names another interpreter.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardfleet_server.code.running.packages import jail_python
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.flags import read_settings

from ..server.code.conftest import LEVELS, Service, rows, served_code, stdio

PROGRAMS = list(rows("package_programs").values())
_SLICE = 40
#: What a large package may need on a busy machine.
_LIMITS = {"cpu_s": 60, "wall_s": 60, "memory_mb": 4000}


def _parts(level: str) -> Iterator[Any]:
    marks = [pytest.mark.slice] if level == LEVELS[0] else []
    yield pytest.param(level, PROGRAMS[:_SLICE], id=f"{level}, small", marks=marks)
    yield pytest.param(level, PROGRAMS[_SLICE:], id=f"{level}, large")


@pytest.mark.parametrize(("level", "programs"), [p for level in LEVELS for p in _parts(level)])
def test_programs_print_in_a_jail_what_they_print_at_home(level: str, programs, tmp_path: Path):
    packages = sorted({name for each in programs for name in each["packages"]})
    settings = read_settings(CodeSettings, {"packages": packages})
    python = jail_python(settings).path
    used = {"packages": packages, "python": settings.python}
    others = {}
    with served_code(level, max_memory_mb=_LIMITS["memory_mb"], **used) as service:
        for row in programs:
            found, expected = _outcome(service, row["program"], python, tmp_path), None
            if level == "landlock":  # where nothing can be written
                expected = row.get("landlock")
            if found["cause"] != expected:
                others[row["program"]] = found
    assert not others


def _outcome(service: Service, program: str, python: str, home: Path) -> dict[str, Any]:
    """Return the score of a program whose output must be what it prints at home."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [python, "-W", "ignore", "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, check=False, text=True, timeout=300
    )
    assert not done.returncode, done.stderr
    tests = stdio(("", done.stdout), checker="exact")
    return service.score(program, tests, limits=_LIMITS)
