"""Checks of `rewardfleet doctor` for the code service."""

import asyncio
from collections.abc import Iterator

from rewardfleet_server.doctor import Check, check_extra

from .sandboxes import Job, ProgramRun, RunLimits, RunResult
from .sandboxes.jail.isolation import FALLBACK_ORDER, find_python
from .sandboxes.jail.pool import JailPool, build
from .settings import CodeSettings

_FIXES = {
    "bubblewrap": "apt-get install bubblewrap libseccomp2, and allow user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1; in a container, a seccomp profile that does)",
    "landlock": "a kernel with Landlock (5.13 or newer, `landlock` in /sys/kernel/security/lsm), "
    "and apt-get install libseccomp2",
}

#: Prints the packages that programs can import.
_LIST_PACKAGES = """
import importlib.metadata
print(", ".join(sorted({d.name for d in importlib.metadata.distributions() if d.name})) or "none")
"""
_LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)


def checks() -> Iterator[Check]:
    """Check the isolation levels, the interpreter of the jails, and its packages."""
    working: JailPool | None = None
    for level in FALLBACK_ORDER:
        try:
            pool = build(CodeSettings(isolation=level, workers=1))
        except ValueError as error:
            is_last = working is None and level == FALLBACK_ORDER[-1]
            what = f"code: isolation {level}: {error}"
            yield Check("failed" if is_last else "missing", what, _FIXES[level])
            continue
        yield Check("ok", f"code: isolation {level}")
        if working is None:
            working = pool
            yield asyncio.run(_package_check(pool))
        asyncio.run(pool.aclose())
    yield check_extra("fusion", "code: --sandbox fusion", "sandbox_fusion")


async def _package_check(pool: JailPool) -> Check:
    """Run a program that prints the packages that it can import."""
    results: list[RunResult] = []

    def on_result(result: RunResult) -> bool:
        results.append(result)
        return False

    await pool.run(Job(_LIST_PACKAGES, [ProgramRun()], _LIMITS), on_result)
    packages = results[0].stdout.decode(errors="replace").strip() or "none"
    python = find_python(None)
    what = f"code: packages in the jail (Python at {python.path}): {packages[:300]}"
    if "numpy" in packages:
        return Check("ok", what)
    return Check("ok", what, "numpy is missing; use --python with an interpreter that has it")
