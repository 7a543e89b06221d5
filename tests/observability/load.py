"""A load of successes, failures, abstentions, timeouts, cached scores and fallback rewards."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import httpx

from rewardfleet import RewardFleet, answers_request, episode_request
from rewardfleet.wire.code import CodeRequest
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.video import VideoRequest

LIBERO = Path(__file__).parent.parent / "data" / "libero"
_ANSWER = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'
_SUM = {"kind": "stdio", "cases": [{"stdin": "2 3", "stdout": "5"}]}
_Service = Callable[[RewardFleet, httpx.AsyncClient, int], Awaitable[None]]
_CLIPS = [json.loads(line) for line in (LIBERO / "manifest.jsonl").read_text().splitlines()]


async def run_load(url: str) -> None:
    """Send requests until the task is cancelled. Services may die meanwhile."""
    async with (
        RewardFleet(url, on_failure=0.0, timeout_s=10) as fleet,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
    ):
        services = (_video, _code, _episode, _tools, _answers)
        await asyncio.gather(*(_repeat(each, fleet, http) for each in services))


async def _repeat(service: _Service, fleet: RewardFleet, http: httpx.AsyncClient) -> NoReturn:
    for number in itertools.count():
        with contextlib.suppress(RewardFleetError, httpx.TransportError):
            await service(fleet, http, number)
        await asyncio.sleep(0.4)
    raise AssertionError


async def _video(fleet: RewardFleet, http: httpx.AsyncClient, number: int) -> None:
    clip = _CLIPS[number % len(_CLIPS)]
    new = _rollout(clip, nframes=4 + number % 60)
    unknown = VideoRequest(task_text=f"juggle {number}", video_path=clip["file"])
    await fleet.video.score_batch([new, unknown])
    await fleet.video.score_batch([_rollout(_CLIPS[0])])  # soon cached
    await fleet.video.reward("put the bowl on the stove", "missing.mp4")  # replaced by on_failure
    await http.post("/video/score", json={"task_text": 1})


def _rollout(clip: dict[str, str], **options: int) -> VideoRequest:
    return VideoRequest(task_text=clip["task_text"], video_path=clip["file"], **options)


async def _code(fleet: RewardFleet, http: httpx.AsyncClient, _: int) -> None:
    passes = "a, b = map(int, input().split())\nprint(a + b)"
    new = time.time_ns()  # else a run before may have left the verdict in the cache
    busy = "import time\nwhile time.process_time() < 0.5: pass\n"
    slow = [f"{busy}print({new} + {place})" for place in range(6)]
    batch = [CodeRequest(revision=text, tests=_SUM) for text in (passes, "print(1)", *slow)]
    async with RewardFleet(str(http.base_url), on_failure=0.0, timeout_s=0.5) as impatient:

        async def late() -> None:
            await asyncio.sleep(0.1)  # behind the batch
            await impatient.code.reward(f"print({new})", _SUM)  # waits, and is replaced

        await asyncio.gather(fleet.code.score_batch(batch), late())
        await impatient.code.reward(passes, _SUM)  # reports it
    for _ in range(2):
        await http.post("/code/score", json={})


async def _episode(fleet: RewardFleet, http: httpx.AsyncClient, number: int) -> None:
    same = {"group": "bowl", "kind": "efficiency", "max_steps": 500}
    own = [{"success": n % 2, "steps": 100 + n, "temperature": 0.5 + n % 2} for n in range(8)]
    episodes = [episode_request(f"{number}-{n}", **same, **each) for n, each in enumerate(own)]
    await fleet.episode.score_batch(episodes)
    await http.post("/episode/score/batch", json={"items": []})


async def _tools(fleet: RewardFleet, http: httpx.AsyncClient, number: int) -> None:
    await fleet.tools.put_budget("run-9", budget=0.3, parts=1)
    await fleet.tools.score(_ANSWER, _ANSWER, run="run-9")
    await fleet.tools.update_budget("run-9", step=number, costs=[1.0], mean_task_reward=0.5)
    await http.post("/tools/score", json={})


async def _answers(fleet: RewardFleet, http: httpx.AsyncClient, number: int) -> None:
    await fleet.answers.score_batch([
        answers_request(r"\boxed{x+1}", "1+x"),  # soon cached
        # Only one checker knows Euler's identity.
        answers_request(rf"\boxed{{e^{{i\pi}} + {number}}}", f"{number - 1}", form="expression"),
        answers_request("2", 3),
        answers_request(None, 3),
    ])  # fmt: skip
    slow = {"response": rf"\boxed{{\sum_{{k=1}}^{{50000}} k! + {number}}}", "reference": "5"}
    async with RewardFleet(str(http.base_url), on_failure=0.0, timeout_s=0.5) as impatient:
        await impatient.answers.reward(**slow)  # replaced
        await impatient.answers.reward("1", 1)  # reports it
    if number % 20 == 0:
        await http.post("/answers/score", json=slow)  # exceeds its limit
    await http.post("/answers/score", json={})
