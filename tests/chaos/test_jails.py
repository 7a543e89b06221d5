"""The code service, whose jails are killed."""

import asyncio
import os
import random
import re
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from rewardfleet import RewardFleet

from ..server.processes import descendants
from .figures import Figures
from .processes import ServiceProcess
from .trainers import until_answered

_PROGRAMS, _CALLERS, _WORKERS = 320, 8, 3
#: A jail is killed after so many programs, so that no program loses its jail twice.
_PROGRAMS_PER_KILL = 20

_PROGRAM = """
import sys, time
number = int(input())
time.sleep(0.03)
if number in {failing}:
    sys.exit(1)
print(number * {factor} + (number in {wrong}))
"""


@pytest.mark.slice
async def test_no_verdict_changes_while_jails_are_killed(
    tmp_path: Path, figures: Figures, factor: int
):
    arguments = ("--workers", str(_WORKERS), "--cache", str(tmp_path / "cache.sqlite"))
    with ServiceProcess(tmp_path, "code", *arguments) as service:
        service.wait_until_ready()
        async with RewardFleet(code=service.url, timeout_s=60) as fleet:
            numbers = iter(range(_PROGRAMS * factor))

            async def caller() -> None:
                for number in numbers:
                    await _score(fleet, number, figures)

            kills = 0
            async with asyncio.TaskGroup() as group:
                callers = [group.create_task(caller()) for _ in range(_CALLERS)]
                while not all(each.done() for each in callers):
                    await asyncio.sleep(0.005)
                    if figures.right < (kills + 1) * _PROGRAMS_PER_KILL:
                        continue
                    if jails := sorted(descendants(service.pid, depth=1)):
                        kills += 1
                        with suppress(ProcessLookupError):  # it has just been replaced
                            os.kill(random.choice(jails), signal.SIGKILL)
        metrics = httpx.get(f"{service.url}/metrics", timeout=60, trust_env=False).text
    counter = re.search(r"(?m)^rewardfleet_jail_restarts_total (\S+)", metrics)
    restarts = int(float(counter[1]))
    figures.notes["kills"] = kills
    figures.notes["jails replaced"] = restarts
    figures.assert_all_right()
    assert restarts > kills / 2 > 5  # the last ones may not have been noticed


async def _score(fleet: RewardFleet, number: int, figures: Figures) -> None:
    """Run a program that fails some of its tests, and prints a wrong line in others."""
    pick = random.Random(number)
    inputs = range(4)
    failing = {each for each in inputs if pick.random() < 0.2}
    wrong = {each for each in inputs if pick.random() < 0.2} - failing
    program = _PROGRAM.format(failing=failing or "()", wrong=wrong or "()", factor=number + 2)
    cases = [{"stdin": str(each), "stdout": str(each * (number + 2))} for each in inputs]
    expected = [
        "runtime_error" if each in failing else "wrong_answer" if each in wrong else "accepted"
        for each in inputs
    ]
    figures.made += 1
    limits = {"wall_s": 30}
    score = await until_answered(
        lambda: fleet.code.score(program, {"kind": "stdio", "cases": cases}, limits=limits),
        figures,
    )
    figures.check(number, [each.verdict.value for each in score.verdicts], expected)
