"""What the benchmarks score: answers, programs, clips and frames."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from rewardfleet.wire.frames import Frames
from rewardfleet.wire.video import VideoRequest
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video

ROOT = Path(__file__).parents[2]
VIDEOS = ROOT / "tests" / "data" / "libero" / "videos"
CLIP = VIDEOS / (
    "libero_10__LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato__success__s30970.mp4"
)
TASK = "put both the alphabet soup and the tomato sauce in the basket"
NFRAMES = 16
#: Tests of a submission.
TESTS = 20

Item = dict[str, Any]
#: An answer, and its ground truth.
Row = tuple[str, str]

#: Numbers that no other item of this run has, so that nothing is cached.
numbers = itertools.count()

# Answers


def tool_answer(think: str, *calls: Item) -> str:
    lines = "\n".join(map(json.dumps, calls))
    return f"<think>{think}</think>\n<tool_call>\n{lines}\n</tool_call>"


def answer(think: str, repeated: int = 1) -> dict[str, str]:
    """Return a right answer, whose call is repeated."""
    search = {"name": "search", "parameters": {"query": "weather"}}
    text = tool_answer(think, search)
    return {"response": text * repeated, "ground_truth": tool_answer("x", search)}


def rows(count: int, group_size: int = 8) -> list[Row]:
    """Return answers of 1 kB in groups: correct ones, wrong values, extra calls, fewer calls.

    A group has one ground truth, which is parsed once.
    """
    rng = random.Random(0)
    found = []
    for number in range(count):
        group = number // group_size
        calls: list[Item] = [
            {"name": "get_weather", "parameters": {"city": f"city {group}", "days": group % 9}},
            {"name": "convert", "parameters": {"value": group, "from": "C", "to": "F"}},
        ]
        truth = tool_answer("I need the weather.", *calls)
        kind = number % 4
        if kind == 1:
            calls[0]["parameters"]["days"] = str(rng.randrange(99))
        elif kind == 2:
            calls.append({"name": "search_web", "parameters": {"query": f"q{number}"}})
        elif kind == 3:
            calls = calls[:1]
        think = " ".join(f"word{rng.randrange(1000)}" for _ in range(200))
        text = tool_answer(think, *calls)
        found.append((text[: len("<think>")] + text[len("<think>") + len(text) - 1024 :], truth))
    return found


# Programs


def stdio(revision: str, *cases: tuple[str, str]) -> Item:
    tests = [{"stdin": stdin, "stdout": stdout} for stdin, stdout in cases]
    return {"revision": revision, "tests": {"kind": "stdio", "cases": tests}}


def submission(number: int, tests: int = TESTS) -> Item:
    """Return a program that differs for each number, and its tests."""
    program = f"""
import sys
def solve_{number}(values):
    total = {number % 7}
    for index, value in enumerate(values):
        total += value * (index + 1) if value % 2 else -value
    return total
values = list(map(int, sys.stdin.read().split()))
print(solve_{number}(values))
"""
    cases = []
    for test in range(tests):
        values = [(number * 31 + test * 17 + index * 7) % 1000 for index in range(10)]
        total = number % 7
        for index, value in enumerate(values):
            total += value * (index + 1) if value % 2 else -value
        cases.append((" ".join(map(str, values)) + "\n", f"{total}\n"))
    return stdio(program, *cases)


def printing(number: int, first_line: str = "") -> Item:
    return stdio(f"{first_line}\nprint({number})", ("", f"{number}\n"))


# Clips


def frames() -> np.ndarray:
    clip = decode_video(str(CLIP), DecodeSpec(NFRAMES, 200_704))
    return np.stack(clip.frames)


def random_frames(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def raw_frames(task: str, clip: np.ndarray, **options: Any) -> VideoRequest:
    """Return a request with the frames of a clip as raw bytes, all of them."""
    described = Frames(shape=clip.shape)
    described.set_pixels(clip.tobytes())
    return VideoRequest(task_text=task, frames=described, **options)
