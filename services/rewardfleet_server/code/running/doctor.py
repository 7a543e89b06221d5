"""Checks of `rewardfleet doctor` for the code service."""

import asyncio
import importlib
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from rewardfleet.wire.code import Limits
from rewardfleet.wire.optional_imports import install_command
from rewardfleet_server.code.checkers.compiler import find_compiler
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, run_once
from rewardfleet_server.code.sandboxes.jail.isolation import IsolationLevel
from rewardfleet_server.code.sandboxes.jail.memory import run_bytes
from rewardfleet_server.code.sandboxes.jail.pool import JailPool, build, check_memory
from rewardfleet_server.code.sandboxes.jail.worker import PythonUnusable
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.system.diagnosis import Diagnosis, check_extra

from .packages import BUILD_COMMAND, environment_of, jail_python

_ALLOW_NAMESPACES = (
    "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or a seccomp profile that "
    "allows them (container)"
)
_USE_LANDLOCK = (
    "use a kernel with Landlock: Linux 5.13 or newer, with landlock in /sys/kernel/security/lsm"
)
_CHANGE_PYTHON = (
    "give --python an interpreter in a folder of its own that everyone can read, like "
    "/opt/jail/bin/python, and --preload modules that it can import"
)
_NO_DELAYS = (
    "code: the kernel does not count how long programs wait for a core, so limits.wall_s includes "
    "that time, and a busy machine can exceed it"
)
#: Prints the packages that programs can import.
_LIST_PACKAGES = """
import importlib.metadata
print(", ".join(sorted({d.name for d in importlib.metadata.distributions() if d.name})) or "none")
"""
_LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=512 << 20, output_bytes=1 << 20)


def checks(settings: CodeSettings) -> Iterator[Diagnosis]:
    """Check the sandbox: of jails, the interpreter, the isolation levels and the packages."""
    uses_fusion = settings.sandbox == "fusion"
    if not uses_fusion:
        yield from _jail_checks(settings)
    yield check_extra("fusion", "code: --fusion-url", "sandbox_fusion", required=uses_fusion)


def _jail_checks(settings: CodeSettings) -> Iterator[Diagnosis]:
    try:
        if settings.packages and not environment_of(settings).is_built:
            names = ",".join(settings.packages)
            what = f"code: --packages {names}: installed when the service starts"
            yield Diagnosis("note", what, f"{BUILD_COMMAND} --packages {shlex.quote(names)}")
            settings = settings.model_copy(update={"packages": []})
        python = jail_python(settings)
    except ValueError as error:
        fix = "give an interpreter of Python 3.11 or newer: rewardfleet serve code --python FILE"
        yield Diagnosis("failed", f"code: {error}", fix)
        return
    memory = _memory_check(settings)
    yield memory
    if memory.status == "failed":
        return
    try:
        importlib.import_module("pyseccomp")  # loads libseccomp
    except ImportError:
        yield Diagnosis("failed", "code: no pyseccomp for the jail", install_command("server"))
        return
    except RuntimeError:
        yield Diagnosis("failed", "code: no libseccomp for the jail", "apt-get install libseccomp2")
        return
    one_jail = {"workers": 1, "python": Path(python.path), "packages": []}
    has_worked = False
    for level in settings.isolation_levels:
        try:
            pool = build(settings.model_copy(update={**one_jail, "isolation": level}))
        except ValueError as error:
            if isinstance(error.__cause__, PythonUnusable):  # as at all levels
                yield Diagnosis("failed", f"code: {error}", _CHANGE_PYTHON)
                return
            is_last = not has_worked and level == settings.isolation_levels[-1]
            what = f"code: isolation {level}: {error}"
            yield Diagnosis("failed" if is_last else "note", what, _fix(level))
            continue
        yield Diagnosis("ok", f"code: isolation {level}")
        if not has_worked:
            has_worked = True
            if not pool.counts_delays:
                yield Diagnosis("note", _NO_DELAYS, "use a kernel with CONFIG_SCHED_INFO")
            yield from asyncio.run(_package_checks(pool, python.path))
        asyncio.run(pool.aclose())
    if compiler := find_compiler():
        yield Diagnosis("ok", f"code: C++ compiler for checker programs: {compiler}")
    else:
        what = "code: no C++ compiler: checker programs must be in Python"
        yield Diagnosis("note", what, "apt-get install g++")


def _memory_check(settings: CodeSettings) -> Diagnosis:
    try:
        capacity = check_memory(settings)
    except ValueError as error:
        what, _, fix = str(error).partition(". ")
        return Diagnosis("failed", f"code: {what}", fix)
    most, usual = settings.max_memory_mb, min(Limits().memory_mb, settings.max_memory_mb)
    limits = RunLimits(1, 1, usual << 20, Limits().output_kb << 10)
    alone, with_tests = (
        capacity.of_programs // run_bytes(limits, tests_apart=apart) for apart in (False, True)
    )
    what = (
        f"code: memory: {capacity}: {alone} programs at a time with limits.memory_mb {usual}, "
        f"{with_tests} of them with a process of tests"
    )
    if most < Limits().memory_mb:
        return Diagnosis("note", what, f"requests must give limits.memory_mb, at most {most}")
    if alone < settings.workers:
        return Diagnosis("note", f"{what}, which is less than --workers", "request lower limits")
    return Diagnosis("ok", what)


def _fix(level: IsolationLevel) -> str:
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "apt-get install bubblewrap"
    return _ALLOW_NAMESPACES if level == "bubblewrap" else _USE_LANDLOCK


async def _package_checks(pool: JailPool, python: str) -> list[Diagnosis]:
    result = await run_once(pool, Job(_LIST_PACKAGES, [ProgramRun()], _LIMITS))
    packages = result.stdout.decode(errors="replace").strip() or "none"
    what = f"code: packages in the jail (Python at {python}): {packages[:300]}"
    found = [Diagnosis("ok", what)]
    if "numpy" not in packages.split(", "):
        found.append(Diagnosis("note", "code: programs cannot import numpy", BUILD_COMMAND))
    return found
