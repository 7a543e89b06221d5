"""The end of a program: what it prints and its exit status are those of CPython.

The programs are in `tests/data/code/program_end.jsonl`.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, run_once
from rewardfleet_server.code.sandboxes.jail.isolation import find_python
from rewardfleet_server.code.sandboxes.jail.pool import JailPool, build
from rewardfleet_server.code.settings import CodeSettings

from .conftest import rows, sample

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)
STDIN = b"3\n1 2 3\n"
PROGRAMS = rows("program_end", "ends")
FILES = {name: {**row, "files": True} for name, row in rows("program_end", "files").items()}
PROGRAMS["__del__ in a long program"] = {
    "program": f"{PROGRAMS['__del__ of a global']['program']}\n#{'-' * 60_000}"
}


@pytest.fixture(scope="module")
def jails() -> Iterator[JailPool]:
    pool = build(CodeSettings(workers=1))
    yield pool
    asyncio.run(pool.aclose())


@pytest.mark.parametrize("row", [*sample(PROGRAMS, 3), *sample(FILES)])
async def test_a_program_ends_and_uses_files_as_in_cpython(jails: JailPool, row, tmp_path: Path):
    if "files" in row and jails.provenance["isolation"] != "bubblewrap":
        pytest.skip("a program can write files only in bubblewrap's folders")
    job = Job(row["program"], [ProgramRun(STDIN)], LIMITS)
    result = await run_once(jails, job)
    file, folder = tmp_path / "program.py", tmp_path / "folder"
    file.write_text(row["program"])
    folder.mkdir()
    expected = subprocess.run(
        [find_python(None).path, "-I", "-X", "utf8", file],  # that of the jails
        input=STDIN,
        capture_output=True,
        check=False,
        timeout=60,
        cwd=folder,
    )
    assert (result.stdout, result.exit_code) == (expected.stdout, expected.returncode), result
