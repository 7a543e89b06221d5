"""`compute_score` as verl calls it: by path, by keyword, sync and async, in forked workers."""

import asyncio
import importlib.util
import json
import math
import multiprocessing
import subprocess
import sys
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from rewardfleet import InvalidRequest, RewardFleet, Unavailable, blocking
from rewardfleet.adapters import verl
from rewardfleet.adapters.verl import compute_score, compute_score_async

pytestmark = pytest.mark.slow

TESTS = {
    "kind": "stdio",
    "cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "7", "stdout": "7"}],
}
SUM = "So:\n```python\nprint(sum(map(int, input().split())))\n```\n"
ECHO = "print(input())"

T = TypeVar("T")


def sync(*given: object, **kwargs: object) -> dict[str, float]:
    return compute_score(*given, **kwargs)


def awaited(*given: object, **kwargs: object) -> dict[str, float]:
    return asyncio.run(closing(compute_score_async(*given, **kwargs)))


async def closing(work: Awaitable[T]) -> T:
    """Close what the work opened: this event loop ends with it, where a trainer's lasts."""
    try:
        return await work
    finally:
        for fleet in verl._fleets.values():
            if isinstance(fleet, RewardFleet):
                await fleet.aclose()


@pytest.fixture(autouse=True)
def _fleets_of_its_own():
    verl._fleets.clear()
    yield
    for fleet in verl._fleets.values():
        if isinstance(fleet, blocking.RewardFleet):
            fleet.close()


both = pytest.mark.parametrize("score", [sync, awaited])


@both
def test_a_score_is_the_share_of_tests_passed(score, code_url: str):
    told = score("code", SUM, TESTS, None, url=code_url)
    assert (told["score"], told["pass_rate"], told["failed"]) == (1.0, 1.0, 0.0)
    told = score("code", ECHO, json.dumps(TESTS), {"index": 3}, url=[code_url])
    assert (told["score"], told["pass_rate"], told["failed"]) == (0.5, 0.5, 0.0)
    told = score("code", ECHO, TESTS, {"mode": "all_pass"}, url=code_url)
    assert told["score"] == 0.0


@both
def test_a_revision_beside_a_critique_is_what_runs(score, code_url: str):
    critique = "Sum them.\nOverall judgment: Incorrect"
    extra = {"revision": SUM}
    assert score("critic", critique, TESTS, extra, url=code_url)["score"] == 1.0
    assert extra == {"revision": SUM}, "verl's samples may share it"


@both
def test_a_critique_is_judged_too(score, code_url: str):
    extra = {"revision": SUM, "original_passed": True}
    told = score("critic", "Overall judgment: Incorrect", TESTS, extra, url=code_url)
    assert (told["score"], told["critique_valid"], told["judgment_correct"]) == (1.0, 1.0, 0.0)
    told = score("critic", "Nice.", TESTS, extra, url=code_url)
    assert (told["score"], told["critique_valid"], told["failed"]) == (0.0, 0.0, 0.0)
    assert score("code", SUM, TESTS, {"critique": "Nice."}, url=code_url)["score"] == 0.0


@both
def test_a_failure_is_raised_or_the_chosen_number_and_never_silently_0(
    score, unused_tcp_port: int, code_url: str, caplog
):
    dead = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(Unavailable):
        score("code", SUM, TESTS, url=dead, timeout_s=0.5)
    with pytest.raises(InvalidRequest, match="tests"):
        score("code", SUM, "no tests", url=code_url)
    assert not caplog.messages
    told = score("code", SUM, TESTS, url=dead, timeout_s=0.5, on_failure=-1.0)
    assert (told["score"], told["failed"]) == (-1.0, 1.0)
    assert "cannot be reached" in caplog.messages[0]
    assert math.isnan(score("code", SUM, None, url=code_url, on_failure=math.nan)["score"])
    with pytest.raises(ValueError, match="on_failure"):
        score("code", SUM, TESTS, url=code_url, on_failure="zero")


@both
def test_all_samples_tell_the_same_names_and_numbers(score, code_url: str):
    """verl gathers lists of them by the first sample's."""
    told = [
        score("code", SUM, TESTS, url=code_url),
        score("code", "import", TESTS, {"critique": "Overall judgment: Correct"}, url=code_url),
        score("code", SUM, None, url=code_url, on_failure=0.25),
    ]
    assert len({tuple(each) for each in told}) == 1
    assert all(type(value) is float for each in told for value in each.values())


@both
def test_what_verl_gives_to_every_function_is_taken_and_nothing_else(score, code_url: str):
    given = dict.fromkeys(("reward_router_address", "reward_model_tokenizer", "reward_model"))
    assert score("code", SUM, TESTS, url=code_url, **given)["score"] == 1.0
    with pytest.raises(TypeError, match="on_faliure"):
        score("code", SUM, TESTS, url=code_url, on_faliure=0.0)
    with pytest.raises(TypeError, match="url"):
        score("code", SUM, TESTS)


def test_verl_loads_the_file_by_its_path(code_url: str):
    """As `custom_module`, which is part of no package."""
    spec = importlib.util.spec_from_file_location("custom_module", Path(verl.__file__))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scored = module.compute_score(
        data_source="code", solution_str=SUM, ground_truth=TESTS, extra_info={}, url=code_url
    )
    assert scored["score"] == 1.0
    for fleet in module._fleets.values():
        fleet.close()


def test_threads_share_one_fleet_and_so_do_event_loops(code_url: str):
    def scored(program: str) -> float:
        return compute_score("code", program, TESTS, url=code_url)["score"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(scored, [SUM, ECHO] * 8)) == [1.0, 0.5] * 8

    async def gathered() -> list[float]:
        calls = [compute_score_async("code", each, TESTS, url=code_url) for each in [SUM, ECHO] * 8]
        return [told["score"] for told in await asyncio.gather(*calls)]

    assert [asyncio.run(closing(gathered())) for _ in range(2)] == [[1.0, 0.5] * 8] * 2
    kinds = [type(fleet) for fleet in verl._fleets.values()]
    assert len(kinds) == 2 and blocking.RewardFleet in kinds


FORKED = """
import asyncio, json, multiprocessing, sys
from rewardfleet.adapters.verl import compute_score, compute_score_async

url, tests = sys.argv[1], sys.argv[2]

def scored(program):
    return compute_score("code", program, tests, url=url)["score"]

async def both(program):
    return (await compute_score_async("code", program, tests, url=url))["score"]

def work(program):
    assert scored(program) == asyncio.run(both(program)) == 0.5

work("print(input())")  # the parent's fleets are in use before the fork
context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(f"print(input()) # {i}",)) for i in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(20)
    assert worker.exitcode == 0, worker.exitcode
work("print(input())")
print("all")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
def test_forked_workers_use_what_their_parent_used(code_url: str):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, code_url, json.dumps(TESTS)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr
