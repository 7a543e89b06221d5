"""Reward functions for verifiers, called as a `Rubric` of 0.1.14 and a `Task` of 0.4.0 do."""

import asyncio
import inspect
import json
import math
from types import SimpleNamespace

import pytest

from rewardfleet import InvalidRequest
from rewardfleet.adapters._rows import MissingReward
from rewardfleet.adapters.verifiers import reward_function

from .conftest import ECHO, SUM, TESTS, UNREACHABLE, requests_to


async def by_rubric(function, *texts: object, **row: object) -> list[float]:
    """A rubric gives all that the signature names, and the columns if it takes any."""

    def call(text: object):
        completion = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": text}]
        objects = {"prompt": [], "completion": completion, "answer": json.dumps(TESTS)}
        return function(**{**objects, "state": {}, "info": {}, "task": "add", **row})

    return await asyncio.gather(*map(call, texts))


async def by_task(function, text: str, **data: object) -> float:
    """A task gives what the signature names of `task`, `trace` and `runtime`."""
    task = SimpleNamespace(model_dump=lambda: {"idx": 3, "answer": TESTS, **data})
    recorded: dict[str, float] = {}
    trace = SimpleNamespace(last_reply=text, record_metrics=recorded.update)
    available = {"task": task, "trace": trace, "runtime": None}
    names = inspect.signature(function).parameters
    given = {name: value for name, value in available.items() if name in names}
    reward = await function(**given)
    assert recorded["reward/failed"] == recorded["reward/abstained"] == 0.0
    return reward


async def test_a_rubric_scores_rollouts_by_their_answers(code_url: str):
    reward = reward_function("code", code_url)
    assert await by_rubric(reward, SUM, ECHO, "", "\0") == [1.0, 0.5, 0.0, 0.0]
    assert await by_rubric(reward, ECHO, info={"mode": "all_pass"}) == [0.0]
    assert await by_rubric(reward, ECHO, info='{"mode": "all_pass"}') == [0.0]
    assert reward.__name__ == "code_reward"


async def test_tests_may_be_in_the_info_or_in_a_column(code_url: str):
    reward = reward_function("code", code_url, column="tests")
    assert await by_rubric(reward, ECHO, info={"tests": TESTS}) == [0.5]
    assert await by_rubric(reward, ECHO, tests=TESTS) == [0.5]
    message = "InvalidRequest: 'tests' is missing; there are: answer, "
    with pytest.raises(MissingReward, match=message):
        await by_rubric(reward, ECHO)


async def test_a_task_scores_the_last_reply(code_url: str):
    reward = reward_function("code", code_url)
    assert await by_task(reward, SUM) == 1.0
    assert await by_task(reward, "", mode=None) == 0.0
    assert await by_task(reward, ECHO, mode="all_pass") == 0.0
    with pytest.raises(InvalidRequest, match="'answer' is null"):
        await by_task(reward, ECHO, answer=None)


@pytest.mark.slow
async def test_a_failure_is_an_error_for_a_task_and_no_exception_for_a_rubric(lost_url: str):
    """A rubric turns each `Exception` into a reward of 0."""
    reward = reward_function("code", lost_url, timeout_s=0.3)
    with pytest.raises(UNREACHABLE):
        await by_task(reward, SUM)
    with pytest.raises(MissingReward, match="Unavailable: |DeadlineExceeded: "):
        await by_rubric(reward, SUM)
    reward = reward_function("code", lost_url, timeout_s=0.3, on_failure=math.nan)
    assert math.isnan((await by_rubric(reward, SUM))[0])


async def test_concurrent_rollouts_share_requests(code_url: str):
    # Threads of a busy machine do not call within the default window.
    reward = reward_function("code", code_url, coalesce_s=0.2)
    before = requests_to(code_url)
    assert await by_rubric(reward, *[SUM, ECHO] * 20) == [1.0, 0.5] * 20
    assert 0 < requests_to(code_url) - before < 20
