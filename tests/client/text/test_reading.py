"""What a text says, whoever reads it: each mark of thoughts, turns and ends, for each reader."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from rewardfleet.text import marks
from rewardfleet.text.judgment import overall_judgment
from rewardfleet.text.messages import answer_text, completion_text
from rewardfleet.text.program import extract_program
from rewardfleet.text.reading import read
from rewardfleet.tool_use import score_answer
from rewardfleet.wire.tools import ToolsOptions
from rewardfleet_server.video.judges.score_parser import parse_score

from ...conftest import DATA
from ...measure import CpuStopwatch
from .test_program import REPEATED

MARKS = json.loads((DATA / "client" / "marks.json").read_text())
#: Thoughts: what begins and ends them. In the last rows, the prompt began them.
THOUGHTS = MARKS["thoughts"]
#: What ends the policy's turn, begins one of a tool or a user, and begins the policy's last one.
TURNS = MARKS["turns"]
ENDS = MARKS["ends"]

WRONG, RIGHT = "def f():\n    return 0\n", "def f():\n    return 1\n"


def call(name: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'parameters': {}})}\n</tool_call>"


def calls_right(text: str) -> bool | None:
    """Whether the calls are those wanted; None if there are none."""
    reward = score_answer(text, f"<think>x</think>\n{call('right')}", ToolsOptions())
    return reward.correctness == 3.0 if reward.usage.calls else None


def program_right(text: str) -> bool | None:
    program = extract_program(text, {"f"}).strip()
    return {RIGHT.strip(): True, WRONG.strip(): False}.get(program)


def judgment_right(text: str) -> bool | None:
    return {"correct": True, "incorrect": False, None: None}[overall_judgment(text)]


def score_right(text: str) -> bool | None:
    score = parse_score(text).score
    return None if score is None else score == 0.85


#: A reader, what it reads as right and as wrong.
READERS = {
    "program": (program_right, f"```python\n{RIGHT}```", f"```python\n{WRONG}```"),
    "whole text": (program_right, RIGHT.strip(), WRONG.strip()),
    "critique": (judgment_right, "Overall judgment: Correct", "Overall judgment: Incorrect"),
    "score": (score_right, "Score: 85%", "Score: 20%"),
    "calls": (calls_right, call("right"), call("wrong")),
}
Reader = tuple[Callable[[str], bool | None], str, str]
READER = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@READER
@pytest.mark.parametrize(("begin", "end"), THOUGHTS)
def test_thoughts_are_no_answer(reader: Reader, begin: str, end: str):
    read_by, right, wrong = reader
    assert read_by(f"{begin}I try\n{wrong}\nNo.{end}\n{right}") is True
    assert read_by(f"{begin}I try\n{right}\nNo.{end}\n{wrong}") is False
    assert read_by(f"{begin}I try\n{right}\nNo.{end}\nI give up.") is None
    if begin and end != "assistantfinal" and not end.endswith(":"):  # cut off
        assert read_by(f"{begin}I try\n{right}\n") is None
    assert read(f"{begin}a{end}b").last.answer == "b"


@READER
@pytest.mark.parametrize(("begin", "end"), TURNS)
def test_what_others_wrote_is_not_the_policys(reader: Reader, begin: str, end: str):
    read_by, right, wrong = reader
    assert read_by(f"I ask.{begin}{wrong}{end}{right}") is True
    assert read_by(f"I ask.{begin}{right}{end}{wrong}") is False
    assert read_by(f"I ask.{begin}{right}{end}Done.") is None
    # `user` is a mark if the assistant follows. An executor may run what is in an answer of a tool
    # that never ends, as the policy may have written it.
    may_run = read_by is calls_right and end.startswith(("\n</tool_response>\n", "</i", "[/"))
    if begin != "\nuser\n" and not may_run:
        assert read_by(f"I ask.{begin}{right}") is None


@READER
@pytest.mark.parametrize("end", ENDS)
def test_tokens_that_end_a_text_are_not_part_of_it(reader: Reader, end: str):
    read_by, right, wrong = reader
    assert read_by(f"{right}{end}") is True
    assert read_by(f"<think>I try {wrong}</think>\n{right}{end}") is True


def test_the_last_turn_is_the_answer_and_calls_of_all_turns_count():
    text = f"{call('right')}<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert calls_right(f"{text}Done.") is True
    assert calls_right(f"{text}{call('wrong')}") is False
    # An executor that skips one thought of a turn runs what is in a second one.
    assert calls_right(f"<think>a</think><think>{call('right')}</think>") is True


@pytest.mark.parametrize(("completion", "text"), MARKS["messages"])
def test_the_last_turn_of_messages_is_the_answer(completion: Any, text: str):
    assert completion_text(completion) == text


def test_thoughts_of_a_later_message_are_none_of_its_calls():
    messages = [
        {"role": "assistant", "content": f"<think>{call('wrong')}</think>{call('right')}"},
        {"role": "tool", "content": call("wrong")},
        {"role": "assistant", "content": f"<think>{call('wrong')}</think>Done."},
    ]
    assert calls_right(answer_text(messages)) is True


@pytest.mark.parametrize("program", MARKS["programs"])
def test_marks_in_source_code_are_text(program: str):
    for text in (program, f"Sure:\n```python\n{program}\n```\nDone."):
        assert extract_program(text).strip() == program


def test_a_plain_answer_with_calls_is_read_as_any_other(monkeypatch: pytest.MonkeyPatch):
    rests = ["</think>", "<tool_call>[1]</tool_call>", "<response>", "\nassistant\n", "a < b", "{x"]
    rests += [*(mark for row in THOUGHTS + TURNS for mark in row), *ENDS]
    rests += ["{", "[", "<", "", "<think>"]
    texts = [
        f"{blank}<think>{thought}</think>\n<tool_call>{content}</tool_call>{rest}"
        for each in rests
        for thought, content, rest in ((each, "", ""), ("", each, ""), ("a", "b", each))
        for blank in ("", "\n", "x")
    ]
    fast = [read(text, code=code) for text in texts for code in (False, True)]
    monkeypatch.setattr(marks, "PLAIN", re.compile("(?!)"))
    assert fast == [read(text, code=code) for text in texts for code in (False, True)]


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("part", REPEATED["reading"])
def test_reading_takes_linear_time(part: str, code: bool):
    def seconds(characters: int) -> float:
        watch = CpuStopwatch()
        read(part * (characters // len(part)), code=code)
        return watch.seconds

    assert seconds(300_000) < 9 * seconds(75_000) + 0.5  # a quadratic one takes 16 times as long


@pytest.mark.parametrize("mark", MARKS["users"])
def test_a_single_mark_begins_a_turn(mark: str):
    """A text without any other mark is searched for it as well."""
    first, second = read(f"x = 1\n{mark}print(2)").turns
    assert (first.role, first.answer.strip(), second.role) == ("assistant", "x = 1", "user")
