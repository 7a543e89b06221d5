"""A client in the places that trainers use: pickles, forked workers, threads, event loops."""

import asyncio
import functools
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rewardfleet import RewardFleet, blocking
from rewardfleet_server.testing import FakeJudge, wait_until

from ..conftest import LONG_CLIP, Serve
from ..running import output_of

pytestmark = pytest.mark.slow  # starts processes

CLIP = LONG_CLIP.read_bytes()


@pytest.fixture
def url(serve: Serve) -> str:
    return str(serve(FakeJudge(0.75)).base_url)


def test_the_calls_are_coroutine_functions_for_inspect():
    fleet = RewardFleet(video="http://127.0.0.1:1")
    for call in (fleet.video.reward, fleet.video.rewards, fleet.video.score):
        assert inspect.iscoroutinefunction(call)
        assert inspect.iscoroutinefunction(functools.partial(call, nframes=8))
        assert inspect.iscoroutinefunction(pickle.loads(pickle.dumps(call)))


def test_a_fleet_and_its_calls_can_be_pickled(url: str):
    async def used(fleet: RewardFleet, reward: Callable[..., Any]) -> bytes:
        async with fleet:
            assert await reward("task", CLIP) == 0.75
            return pickle.dumps((fleet, reward))

    fleet = RewardFleet(video=[url], binary_reward=False, coalesce_s=0.001)
    pickled = pickle.dumps((fleet, fleet.video.reward))
    for _ in range(2):  # before first use and after it
        pickled = asyncio.run(used(*pickle.loads(pickled)))


def test_pickled_copies_that_are_closed_or_dropped_end_their_threads_and_connections(url: str):
    """As in a pool of processes, where each task unpickles one."""

    def used() -> tuple[int, int]:
        threads = [each for each in threading.enumerate() if each.name == "rewardfleet"]
        return len(threads), len(os.listdir("/proc/self/fd"))

    fleet = blocking.RewardFleet(video=url, binary_reward=False)
    before = pickle.dumps(fleet)
    assert fleet.video.reward("task", CLIP) == 0.75
    one, after = used(), pickle.dumps(fleet)
    for pickled in (before, after, after):
        with pickle.loads(pickled) as copied:
            assert copied.video.reward("task", CLIP) == 0.75
        reward = pickle.loads(pickled).video.reward
        assert reward("task", CLIP) == 0.75
    del reward
    wait_until(lambda: used() <= one)
    assert fleet.video.reward("task", CLIP) == 0.75
    del fleet
    wait_until(lambda: used()[0] < one[0])


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("options", [{}, {"coalesce_s": 0.001}], ids=str)
def test_event_loops_share_a_fleet_in_threads_and_one_after_another(url: str, run_loop, options):
    fleet = RewardFleet(video=url, **options)
    together = threading.Barrier(4)

    async def use() -> set[float]:
        async with fleet:
            together.wait(30)
            scores = await asyncio.gather(*(fleet.video.score("task", CLIP) for _ in range(5)))
            return {each.score for each in scores}

    with ThreadPoolExecutor(4) as threads:
        for scores in threads.map(lambda _: [run_loop(use()) for _ in range(3)], range(4)):
            assert scores == [{0.75}] * 3


def test_threads_may_share_a_blocking_fleet(url: str):
    together = threading.Barrier(8)

    def use(fleet: blocking.RewardFleet) -> float:
        together.wait(30)  # they race for the first use
        return fleet.video.score("task", CLIP).score

    with blocking.RewardFleet(video=url) as fleet, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, [fleet] * 8)) == [0.75] * 8
        assert len(fleet._loop._workers) == 1


def run(program: str, *arguments: str) -> str:
    """Run a program in its own interpreter; it must succeed within a time limit."""
    command = (sys.executable, "-W", "error::RuntimeWarning", "-c", program, *arguments)
    shown, *warnings = output_of(*command, seconds=80).splitlines()
    assert not warnings or "fork" in "".join(warnings)
    return shown


LOOPS = """
import asyncio, sys
from rewardfleet import RewardFleet

fleet = RewardFleet(video=sys.argv[1])

async def use():
    return (await fleet.video.score("task", [open(sys.argv[2], "rb").read()][0])).score

print(*[asyncio.run(use()) for _ in range(5)], len(fleet.video._transport._connected))
"""


def test_event_loops_that_end_without_aclose_leak_nothing(url: str):
    assert run(LOOPS, url, str(LONG_CLIP)).split() == ["0.75"] * 5 + ["1"]


FORKED = """
import multiprocessing, os, sys
from concurrent.futures import ThreadPoolExecutor
from rewardfleet import blocking

fleet = blocking.RewardFleet(video=sys.argv[1])
clip = open(sys.argv[2], "rb").read()

def work(number):
    scores = [fleet.video.score(f"{number} {i}", clip).score for i in range(3)]
    assert scores == [0.75] * 3

def many(number):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))

if sys.argv[3] == "used":
    work(0)
context = multiprocessing.get_context("fork")
workers = [context.Process(target=target, args=(i,)) for target in (work, many) for i in range(3)]
for worker in workers:
    worker.start()
work(1)  # the parent's connections still work
for worker in workers:
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
pid = os.fork()
if not pid:
    try:
        work(2)
        fleet.close()
        work(3)
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
work(4)
fleet.close()
print("all")
"""


def test_forked_workers_can_use_the_fleet_of_their_parent(url: str):
    for state in ("used", "fresh"):
        assert run(FORKED, url, str(LONG_CLIP), state) == "all"


FORKED_ASYNC = """
import asyncio, gc, os, sys
from rewardfleet import RewardFleet

fleet = RewardFleet(video=sys.argv[1])
clip = open(sys.argv[2], "rb").read()

async def use():
    return (await fleet.video.score("task", clip)).score

async def main():
    assert await use() == 0.75
    pid = os.fork()
    if not pid:
        # Still inside the parent's coroutine; a new loop in a thread, as workers have.
        import threading
        results = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(use())))
        thread.start()
        thread.join(60)
        gc.collect()
        os._exit(0 if results == [0.75] else 1)
    assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
    assert [await use() for _ in range(5)] == [0.75] * 5
    await fleet.aclose()

asyncio.run(main())
print("all")
"""


def test_a_fork_inside_an_event_loop_affects_neither_process(url: str):
    assert run(FORKED_ASYNC, url, str(LONG_CLIP)) == "all"


STARTED = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from rewardfleet.adapters.trl import reward_function

url, clip, log, how = sys.argv[1:]

def work(reward, name):
    clips = [open(clip, "rb").read()]
    assert reward([""], task=[name], clip=clips) == [0.75]

if __name__ == "__main__":
    options = {"is_async": False, "binary_reward": False, "score_log": log}
    reward = reward_function("video", url, **options)
    work(reward, "parent")
    context = multiprocessing.get_context(how.removesuffix(" pool"))
    if how.endswith("pool"):
        with ProcessPoolExecutor(2, context) as pool:
            list(pool.map(work, [reward] * 2, ["0", "1"]))
    else:
        workers = [context.Process(target=work, args=(reward, str(i))) for i in range(2)]
        for each in workers:
            each.start()
        for each in workers:
            each.join(60)
            assert each.exitcode == 0
"""


def tasks_of(log: Path) -> list[str]:
    """Return the tasks of the records of a score log, in alphabetic order."""
    lines = [each for file in log.glob("*.jsonl") for each in file.read_text().splitlines()]
    return sorted(json.loads(json.loads(each)["request"])["task_text"] for each in lines)


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "fork pool", "spawn pool"])
def test_workers_get_a_function_that_was_used_and_leave_nothing_out_of_the_log(
    url: str, tmp_path: Path, how: str
):
    """Nobody closes it: forked workers end without what `atexit` has."""
    (tmp_path / "started.py").write_text(STARTED)  # `spawn` imports it
    log = tmp_path / "log"
    output_of(sys.executable, tmp_path / "started.py", url, LONG_CLIP, log, how)
    assert tasks_of(log) == ["0", "1", "parent"]


INTERRUPTED = """
import asyncio, signal, sys
import uvloop
from rewardfleet import RewardFleet, blocking
from rewardfleet.adapters import trl, verl

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
url, clip, log = sys.argv[1:]
clip = open(clip, "rb").read()
options = {"binary_reward": False, "timeout_s": 3600}
batch = {"completions": [""], "task": ["task"], "clip": [clip]}
fleet = RewardFleet(video=url, **options)
logged = blocking.RewardFleet(video=url, score_log=log, **options)
one, later = [trl.reward_function("video", url, is_async=way, **options) for way in (False, True)]

async def score():
    async with fleet:
        return await fleet.video.reward("task", clip)

def compute():
    extra = {"clip": clip}
    return verl.compute_score("x", "", "task", extra, url=url, service="video", **options)["score"]

for call in (
    lambda: asyncio.run(score()),
    lambda: uvloop.run(score()),
    lambda: logged.video.reward("task", clip),
    lambda: one(**batch)[0],
    lambda: asyncio.run(later(**batch))[0],
    compute,
):
    input()
    try:
        print("not interrupted", call(), flush=True)
    except KeyboardInterrupt:
        print(call(), flush=True)
input()
logged.video.reward("task", clip)
"""


def test_ctrl_c_cancels_the_call_and_the_client_goes_on_or_the_process_ends(serve, tmp_path: Path):
    judge = FakeJudge(0.75, deterministic=False)
    command = [sys.executable, "-c", INTERRUPTED, str(serve(judge).base_url), str(LONG_CLIP)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*command, str(tmp_path / "log")], text=True, **pipes) as process:
        for number in range(7):
            judge.wait_s, seen = 3600.0, len(judge.seen)
            process.stdin.write("\n")
            process.stdin.flush()
            wait_until(lambda seen=seen: len(judge.seen) > seen or process.poll() is not None, 60)
            judge.wait_s = 0.0
            process.send_signal(signal.SIGINT)
            assert number == 6 or process.stdout.readline() == "0.75\n"
            wait_until(lambda number=number: judge.cancelled == number + 1)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert errors.count("KeyboardInterrupt") == errors.count("Traceback") == 1, errors
    assert tasks_of(tmp_path / "log") == ["task"]
