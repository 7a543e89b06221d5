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

from ...measure import CpuStopwatch

#: Thoughts: what begins and ends them. In the last rows, the prompt began them.
THOUGHTS = [
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>\n", "</thought>"),
    ("<reasoning>", "</reasoning>"), ("<scratchpad>", "</scratchpad>"), ("[THINK]", "[/THINK]"),
    ("<longcat_think>", "</longcat_think>"), ("<seed:think>", "</seed:think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"), ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<unused94>thought\n", "<unused95>"), ("<|channel>thought\n", "<channel|>"),
    ("[unused16]", "[unused17]"), ("<mm:think>", "</mm:think>"),
    ("<|channel|>analysis<|message|>",
     "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
    ("Here is my thought process:", "Here is my response:"),
    # without a row
    ("<|thinking|>", "<|/thinking|>"), ("{reasoning}", "{/reasoning}"),
    ("[Analysis]", "[/Analysis]"), ("<inner_thoughts>", "</inner_thoughts>"),
    ("", "</think>"), ("", "[/THINK]"), ("", "</seed:think>"),
]  # fmt: skip
#: What ends the policy's turn, begins one of a tool or a user, and begins the policy's last one.
TURNS = [
    ("<|im_end|>\n<|im_start|>tool\n", "<|im_end|>\n<|im_start|>assistant\n"),
    ("<|im_end|>\n<|im_start|>user\n<tool_response>\n",
     "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    ("\nuser\n", "\nassistant\n"),
    ("<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("<end_of_turn>\n<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"),
    ("<turn|>\n<|turn>user\n", "<turn|>\n<|turn>model\n"),
    ("<|im_end|><|im_system|>tool<|im_middle|>",
     "<|im_end|><|im_assistant|>assistant<|im_middle|>"),
    ("<|observation|>\n", "<|assistant|>\n"),
    ("<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
    ("<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>",
     "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"),
    ("[|endofturn|]\n[|user|]", "[|endofturn|]\n[|assistant|]"),
    ("[e~[\n]~b]tool\n", "[e~[\n]~b]ai\n"),
    ("<seed:eos><seed:bos>user\n", "<seed:eos><seed:bos>assistant\n"),
    ("<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>",
     "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("</s>[INST]", "[/INST]"),
    ("<tool_response>\n", "\n</tool_response>\n"),
    ("<information>", "</information>\n"),
    ("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
]  # fmt: skip
ENDS = [
    "<|im_end|>", "<|im_end|>\n<|endoftext|>\n", "<|eot_id|>", "</s>", "<eos>", "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>", "<turn|>", "[EOS]", "[EOT]",
    "<seed:eos>", "[|endofturn|]", "<end_of_utterance>", "<|END_OF_TURN_TOKEN|>", "[e~[",
    "<SPECIAL_12>", "<|im_end|>\n<|im_start|>assistant\n",
]  # fmt: skip

WRONG, RIGHT = "def f():\n    return 0\n", "def f():\n    return 1\n"


def call(name: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'parameters': {}})}\n</tool_call>"


def calls_right(text: str) -> bool | None:
    """Whether the calls are those wanted; None if there are none."""
    options = ToolsOptions()
    reward = score_answer(text, f"<think>x</think>\n{call('right')}", options)
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


ASSISTANT, TOOL, USER = ({"role": role} for role in ("assistant", "tool", "user"))


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ([ASSISTANT | {"content": "a"}, TOOL | {"content": "b"}], "a"),
        (
            [ASSISTANT | {"content": "a"}, USER | {"content": "b"}, ASSISTANT | {"content": "c"}],
            "c",
        ),
        ([ASSISTANT | {"content": "a```"}, ASSISTANT | {"content": "```b"}], "a```\n```b"),
        ([ASSISTANT | {"content": "a"}, TOOL, ASSISTANT | {"content": ""}], ""),
        ([ASSISTANT | {"content": "a"}, TOOL, ASSISTANT | {"content": None}], "a"),
        ([ASSISTANT | {"content": "a"}, ASSISTANT | {"content": None, "tool_calls": []}], "a"),
        ([{"type": "text", "text": "a```"}, {"type": "text", "text": "```b"}], "a```\n```b"),
        ([{"type": "reasoning", "text": "a"}, {"type": "output_text", "text": "b"}], "b"),
        ([{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}], "b"),
        (ASSISTANT | {"content": "a", "reasoning_content": "b"}, "a"),
        ([USER | {"content": "a"}], ""),
    ],
)
def test_the_last_turn_of_messages_is_the_answer(completion: Any, text: str):
    assert completion_text(completion) == text


def test_thoughts_of_a_later_message_are_none_of_its_calls():
    messages = [
        ASSISTANT | {"content": f"<think>{call('wrong')}</think>{call('right')}"},
        TOOL | {"content": call("wrong")},
        ASSISTANT | {"content": f"<think>{call('wrong')}</think>Done."},
    ]
    assert calls_right(answer_text(messages)) is True


@pytest.mark.parametrize(
    "program",
    [
        "a = '<think>'\nprint(a)",
        'a = """\n<think>\n"""\nprint(a)',
        "a = '<|im_start|>user'\nb = '<|im_end|>'\nprint(a, b)",
        'a = """\n<|im_start|>user\nHi<|im_end|>\n"""\nprint(a)',
        "print(1)  # until </think>\nprint(2)",
        "a = '<tool_response>'\nprint(a)",
        "x = [analysis]\nprint(x)",
        "print('[/INST]')",
    ],
)
def test_marks_in_source_code_are_text(program: str):
    for text in (program, f"Sure:\n```python\n{program}\n```\nDone."):
        assert extract_program(text).strip() == program


def test_a_plain_answer_with_calls_is_read_as_any_other(monkeypatch: pytest.MonkeyPatch):
    rests = ["</think>", "<tool_call>[1]</tool_call>", "<response>", "\nassistant\n", "a < b", "{x"]
    rests += [*sum(THOUGHTS + TURNS, ()), *ENDS, "{", "[", "<", "", "<think>"]
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
@pytest.mark.parametrize(
    "part",
    [
        "<think>", "</think>", "<|im_start|>user\n", "\nassistant\n", "<tool_response>",
        "<|im_end|>",
        "<think_think", "_think" * 9 + "<", "[", "<|", "### ", "<|channel|>a", "x\n</think> #\n",
        "</s>", "\u25c1",
    ],
)  # fmt: skip
def test_reading_takes_linear_time(part: str, code: bool):
    watch = CpuStopwatch()
    read(part * (300_000 // len(part)), code=code)
    assert watch.seconds < 5


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_start|>user\n",
        "<|start_header_id|>user<|end_header_id|>",
        "<start_of_turn>user\n",
        "<|turn>user\n",
        "<|im_user|>user<|im_middle|>",
        "<|user|>",
        "<role>user</role>",
        "<\uff5cUser\uff5c>",
        "<|start_of_role|>user<|end_of_role|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
        "[|user|]",
        "]~b]user\n",
        "<seed:bos>user\n",
        "<|start|>user<|message|>",
    ],
)
def test_a_single_mark_begins_a_turn(mark: str):
    """A text without any other mark is searched for it as well."""
    first, second = read(f"x = 1\n{mark}print(2)").turns
    assert (first.role, first.answer.strip(), second.role) == ("assistant", "x = 1", "user")
