"""From completions to programs: bodies, complete programs, and what a prompt brings.

Texts and prompts are in `tests/data/code/completion.jsonl`.
"""

import pytest

from rewardfleet.text.program import extract_program
from rewardfleet.wire.code import AssertTests, FunctionalTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.tests.completion import complete, take_prompt

from ...conftest import table
from .conftest import Service, asserts, rows, sample, sources

PROMPT, BODY = sources("completion").values()
STUB = PROMPT[PROMPT.index("def f") :].rstrip()
METHOD = "class Solution:\n    def f(self, xs: List[int]) -> int:\n        "


def given(prompt: str, entry_point: str = "f") -> AssertTests:
    fields = {"kind": "asserts", "cases": ["assert f([]) == 0"], "prompt": prompt}
    return AssertTests.model_validate({**fields, "entry_point": entry_point})


def completed(text: str, prompt: str = PROMPT, entry_point: str = "f") -> str:
    return complete(extract_program(text), take_prompt(given(prompt, entry_point))[0])


@pytest.mark.parametrize("row", sample(rows("completion", "bodies")))
def test_a_body_continues_the_function_whatever_became_of_its_indentation(row):
    program = completed(row["text"])
    assert program.startswith(STUB)
    for call, result in (("f([])", 0), ("f([1, 0, 2])", 2)):
        names: dict = {}
        exec(program, names)
        assert eval(call, names) == result


@pytest.mark.parametrize("row", sample(rows("completion", "other bodies")))
def test_other_bodies(row):
    names: dict = {}
    exec(completed(row["text"]), names)
    assert names["f"]([1]) == 1


@pytest.mark.parametrize("row", sample(rows("completion", "complete")))
def test_a_complete_program_stays_as_it_is(row):
    assert completed(row["text"]) == row["text"]


@pytest.mark.parametrize(
    "text", ["        return len(xs)", "return len(xs)", "x = xs\nreturn len(x)"]
)
def test_a_body_continues_a_method(text: str):
    names: dict = {"List": list}
    exec(completed(text, METHOD, "Solution().f"), names)
    assert names["Solution"]().f([1, 2]) == 2
    whole = "class Solution:\n    def f(self, xs): return 1"
    assert completed(whole, METHOD, "Solution().f") == whole


@pytest.mark.parametrize("row", sample(rows("completion", "stubs")))
def test_a_function_without_a_body_is_continued(row):
    program = completed("return a", f"from functools import cache\n{row['stub']}")
    assert "return a" in program
    compile(program, "program.py", "exec")


@pytest.mark.parametrize("row", sample(rows("completion", "setups")))
def test_the_setup_gets_the_prompt_without_what_the_program_defines(row):
    _, tests = take_prompt(given(row["prompt"], row["entry_point"]))
    assert isinstance(tests, AssertTests)
    assert (tests.setup, tests.prompt) == (row["setup"], "")


def test_functional_tests_have_prompts():
    fields = {"kind": "functional", "fn_name": "f", "cases": [{"args": [], "expected": 1}]}
    tests = FunctionalTests.model_validate(
        {**fields, "setup": "a = 1", "prompt": f"b = 1\n{METHOD}"}
    )
    taken, folded = take_prompt(tests)
    assert complete("return 1", taken).endswith("        return 1")
    assert isinstance(folded, FunctionalTests)
    assert folded.setup == "a = 1\nb = 1"


def test_a_prompt_that_is_not_valid_python_is_invalid():
    with pytest.raises(InvalidRequest, match=r"tests\.prompt: not valid Python"):
        completed("x", "Count the ones.")


@pytest.mark.parametrize(
    "tests",
    table("tests_with_prompts"),
    ids=["functional", "asserts", "entry point", "function of a row", "row with a prompt"],
)
def test_a_demonstration_after_the_function_is_not_the_program(
    level_service: Service, tests: dict[str, object]
):
    """Also if the prompt began the fence, with the body of the function only."""
    program, demo = "def f(xs):\n    return sum(xs)\n", "def main():\n    print(f([1, 0]))\n"
    rest = f"{program}```\nUse it:\n```python\n{demo}```\n"
    for text in (f"```python\n{rest}", rest):
        scored = level_service.score(text, tests)
        assert (scored["score"], scored["code"]) == (1, program)
    if "prompt" in tests:
        assert level_service.score(f"{BODY}```\nDone.\n```python\n{demo}```", tests)["score"] == 1


def test_a_text_of_any_kind_is_judged(level_service: Service):
    """Nothing that a policy writes makes a request with a prompt invalid."""
    tests = asserts("assert f([1, 0]) == 1", prompt=PROMPT, entry_point="f")
    for text in table("texts_for_prompts"):
        assert level_service.score(text, tests)["score"] == 0


def test_programs_use_the_prompt(level_service: Service):
    tests = asserts("assert f([4, 9]) == 5", prompt=PROMPT, entry_point="f")
    for text in (
        "    return int(sum(map(sqrt, helper(xs))))",
        "```python\ndef f(xs):\n    return int(sum(map(sqrt, helper(xs))))\n```",
        f"{PROMPT}    return int(sum(map(sqrt, xs)))",
    ):
        assert level_service.score(text, tests)["score"] == 1
    wrong = level_service.score("    return nothing", tests)["verdicts"][0]
    assert "return nothing" in wrong["stderr"]
