"""Extraction of the program from a model's text: a table of what models write."""

import json
import textwrap
from typing import Any

import pytest

from rewardfleet.text.program import extract_program

from ...conftest import DATA, table
from ...measure import CpuStopwatch

#: Two complete programs.
P = "def add(a, b):\n    return a + b\n"
Q = "import sys\nfor line in sys.stdin:\n    print(line)\n"


def fence(program: str, language: str = "python", marks: str = "```") -> str:
    return f"{marks}{language}\n{program}{marks}\n"


#: Parts of texts that take long to read if the time is quadratic.
REPEATED = json.loads((DATA / "client" / "repeated.json").read_text())
CASES = table("programs")
CASES.append({"id": "ten-thousand", "text": fence("x = 1\n") * 9_999 + fence(P), "program": P})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_extraction(case: dict[str, Any]):
    program = extract_program(case["text"], {*case.get("called", ())})
    assert program.rstrip("\n") == case["program"].rstrip("\n")


@pytest.mark.parametrize(
    "demo",
    [
        "def main():\n    print(add(1, 2))\n",
        "def check_add():\n    assert add(1, 2) == 3\n",
        "class Demo:\n    sums = [add(1, 2)]\n",
        "print(add(int(input()), 2))\n",
    ],
)
def test_the_block_that_defines_what_is_called_is_the_program(demo: str):
    method = f"class Solution:\n{textwrap.indent(P, '    ')}"
    for program in (P, method, "add = lambda a, b: a + b\n"):
        text = f"{fence(program, '')}Use it:\n{fence(demo)}"
        assert extract_program(text, {"add"}) == program
        assert extract_program(f"{fence(Q)}{text}", {"add"}) == program
        assert extract_program(f"{text}No:\n{fence(P)}{fence(demo)}", {"add"}) == P
        assert extract_program(text, {"sub"}).endswith(demo)
    body = "return a + b\n"
    assert extract_program(f"    {body}```\n{fence(demo)}", {"add"}) == f"    {body}"
    assert extract_program(fence(body) + fence(demo), {"add"}) == body


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("part", REPEATED["program"])
def test_extraction_takes_linear_time(part: str):
    """Quadratic time would be a minute."""
    watch = CpuStopwatch()
    extract_program(part * (100_000 // len(part)))
    extract_program("```python\n" + part * (100_000 // len(part)))
    extract_program(part * (100_000 // len(part)) + "\n```\n")
    extract_program("```" + part * (50_000 // len(part)) + "\n" + "x\n" * 50_000)
    assert watch.seconds < 5


@pytest.mark.parametrize(
    "text", ["\ufeffprint(1)", "```python\n\ufeffprint(1)\n```", "\ufeff```\nprint(1)\n```"]
)
def test_a_byte_order_mark_is_ignored_as_at_the_beginning_of_a_file(text: str):
    assert extract_program(text).strip() == "print(1)"
    assert extract_program("print('\ufeff')") == "print('\ufeff')"
