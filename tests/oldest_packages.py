"""The client with the oldest versions of what it needs, against real services.

`tests/interpreters.py` runs it, and starts the services: `REWARDFLEET_TEST_URLS` is JSON with
the URL of each.
"""

import asyncio
import importlib
import json
import math
import os
import pickle
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import rewardfleet
from rewardfleet import (
    DeadlineExceeded,
    RewardFleet,
    blocking,
    code_request,
    episode_request,
)
from rewardfleet.commands.main import main

URLS = json.loads(os.environ["REWARDFLEET_TEST_URLS"])
TESTS = {"kind": "stdio", "cases": [{"stdin": "2 3", "stdout": "5"}]}
PROGRAM = "print(sum(map(int, input().split())))"
CALL = "<think>a</think>\n<response>b</response>"


async def test_each_service_scores():
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    async with RewardFleet(**URLS) as fleet:
        assert (await fleet.code.score(PROGRAM, TESTS)).score == 1
        assert (await fleet.tools.score(CALL, CALL)).status == "ok"
        assert (await fleet.video.score("put the bowl on the stove", frames)).status is not None
        items = [episode_request(str(n), group="g", success=n) for n in range(2)]
        items.append(episode_request("2", group="g", masked=True))
        response = await fleet.episode.score_batch(items, {"normalize": "group_mean"})
        assert [each.score for each in response.results] == [-0.5, 0.5, None]


def test_batches_coalesced_calls_and_pickles():
    with blocking.RewardFleet(code=URLS["code"], coalesce_s=0.005) as fleet:
        assert fleet.code.rewards([code_request(PROGRAM, TESTS)] * 3) == [1, 1, 1]
    again = pickle.loads(pickle.dumps(RewardFleet(code=URLS["code"], coalesce_s=0.01)))

    async def calls():
        async with again:
            return await asyncio.gather(*(again.code.reward(PROGRAM, TESTS) for _ in range(8)))

    assert asyncio.run(calls()) == [1] * 8


@pytest.fixture
def silent_url():
    """Return the URL of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_call_ends_at_its_deadline(silent_url: str):
    async with RewardFleet(code=silent_url, timeout_s=0.5, on_failure=math.nan) as fleet:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):  # also instead of NaN, as it has never answered
            await fleet.code.reward(PROGRAM, TESTS)
        assert time.monotonic() - began < 15


def test_adapters_are_imported_without_their_trainers():
    folder = Path(rewardfleet.__file__).parent / "adapters"
    names = [path.stem for path in folder.glob("*.py")] + ["libero"]
    for name in {*names} - {"__init__"}:
        importlib.import_module(f"rewardfleet.adapters.{name}")


def test_commands_of_the_client_work_and_others_say_what_they_need(capsys):
    assert main(["status", URLS["code"]]) == 0
    clip = next((Path(__file__).parent / "data/libero/videos").glob("*_stove__success__*.mp4"))
    assert main(["score", "video", str(clip), "no such task", "--url", URLS["video"]]) in {0, 3}
    assert main(["doctor"]) == 0
    assert "the client only: the server's package" in capsys.readouterr().out
    for name in ("load", "log", "eval", "calibrate", "explain", "report"):
        assert main([name, "--help"]) == 0
    capsys.readouterr()
    assert main(["serve", "code"]) == 2
    assert "install the packages of the server: " in capsys.readouterr().err
