"""The end of a program: what it prints and its exit status are those of CPython.

The programs are in `tests/data/code/program_end.jsonl`.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardfleet.wire.score import Timing
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, RunResult
from rewardfleet_server.code.sandboxes.jail.isolation import find_python
from rewardfleet_server.code.sandboxes.jail.pool import JailPool, build
from rewardfleet_server.code.settings import CodeSettings

from .conftest import rows, sample

pytestmark = pytest.mark.slow

LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)
STDIN = b"3\n1 2 3\n"
PROGRAMS = rows("program_end", "ends")
PROGRAMS["__del__ in a long program"] = {
    "program": f"{PROGRAMS['__del__ of a global']['program']}\n#{'-' * 60_000}"
}


@pytest.fixture(scope="module")
def jails() -> Iterator[JailPool]:
    pool = build(CodeSettings(workers=1))
    yield pool
    asyncio.run(pool.aclose())


async def run(jails: JailPool, program: str) -> RunResult:
    results: list[RunResult] = []

    def on_result(result: RunResult) -> bool:
        results.append(result)
        return True

    await jails.run(Job(program, [ProgramRun(STDIN)], LIMITS), on_result, Timing())
    return results[0]


@pytest.mark.parametrize("row", sample(PROGRAMS, 3))
async def test_a_program_ends_as_in_cpython(jails: JailPool, row, tmp_path: Path):
    result = await run(jails, row["program"])
    file = tmp_path / "program.py"
    file.write_text(row["program"])
    expected = subprocess.run(
        [find_python(None).path, "-I", "-X", "utf8", file],  # that of the jails
        input=STDIN,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (result.stdout, result.exit_code) == (expected.stdout, expected.returncode), result


@pytest.mark.parametrize("row", sample(rows("program_end", "files")))
async def test_a_program_uses_files_as_in_cpython(jails: JailPool, row, tmp_path: Path):
    if jails.provenance["isolation"] != "bubblewrap":
        pytest.skip("a program can write files only in bubblewrap's folders")
    result = await run(jails, row["program"])
    expected = subprocess.run(
        [find_python(None).path, "-I", "-X", "utf8", "-c", row["program"]],
        capture_output=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (result.stdout, result.exit_code) == (expected.stdout, 0), result
