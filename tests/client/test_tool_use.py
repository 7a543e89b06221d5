"""Rewards of answers that call tools: parsing, both variants, families and costs."""

import gc
import json
import time
from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardfleet.tool_use import parse_answer, score_answer
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import CostWeights, ToolDescription, ToolsOptions

STRICT, TOOLRL = ToolsOptions(), ToolsOptions(variant="toolrl")


def call(name: str = "get_weather", **parameters: object) -> str:
    return json.dumps({"name": name, "parameters": parameters})


def answer(*calls: str, think: str = "plan", response: str | None = None) -> str:
    blocks = [f"<think>{think}</think>"]
    if calls:
        blocks.append("\n".join(["<tool_call>", *calls, "</tool_call>"]))
    if response is not None:
        blocks.append(f"<response>{response}</response>")
    return "\n".join(blocks)


RIGHT = call(city="Paris", days=3)
TRUTH = answer(RIGHT)
DATA = Path(__file__).parents[1] / "data" / "client"
ANSWERS = json.loads((DATA / "answers.json").read_text())
#: Parts of texts that take long to read if the time is quadratic.
REPEATED = json.loads((DATA / "repeated.json").read_text())
USELESS = [call(f"tool_{number}", a=1, b=2) for number in range(9)]
ANSWER_ONLY = answer(response="42")


# The figures of `toolrl` are those of the published function.
@pytest.mark.parametrize("case", ANSWERS["variants"], ids=lambda case: case["id"])
def test_the_variants_side_by_side(case: dict[str, Any]):
    for options in (TOOLRL, STRICT):
        task = score_answer(case["text"], case["truth"], options).task
        assert task == pytest.approx(case[options.variant], abs=5e-4)


# (refined, coarse, ...): computed with the published function at the same step.
@pytest.mark.parametrize(("options", "step", "text", "expected"), ANSWERS["options"])
def test_options_of_the_published_reward(options: dict, step: int, text: str, expected: float):
    given = ToolsOptions(variant="toolrl", **options)
    assert score_answer(text, TRUTH, given, step=step).task == pytest.approx(expected)


def test_a_useless_call_always_costs_more_than_the_one_before():
    rewards = [score_answer(answer(RIGHT, *USELESS[:n]), TRUTH, STRICT).task for n in range(10)]
    assert all(more < less for less, more in pairwise(rewards))


def test_calls_are_matched_one_to_one_and_as_well_as_possible():
    """A greedy matching gives the first wanted call to the wrong one."""
    truth = answer(call(a=1, b=2), call(a=1, c=3))
    best = answer(call(a=1, c=3), call(a=1, b=2))
    assert score_answer(best, truth, STRICT).correctness == 3.0
    rewards = {
        score_answer(answer(*order), truth, STRICT).correctness
        for order in permutations([call(a=1, b=9), call(a=1, c=3), call("other", x=1)])
    }
    assert len(rewards) == 1, "the order of calls does not matter"


def test_the_order_of_calls_that_match_equally_well_does_not_matter():
    """They differ in weight, and the one that is not matched costs its weight."""
    for truth in (answer(call()), answer(call(), call(a=1))):
        rewards = {
            score_answer(answer(*order), truth, STRICT).correctness
            for order in permutations([call(x=1), call(y=1, z=2), call(x=1, y=1, z=3)])
        }
        assert len(rewards) == 1


@pytest.mark.parametrize(("text", "is_formatted"), ANSWERS["formats"])
def test_the_strict_format(text: str, is_formatted: float):
    assert score_answer(text, TRUTH, STRICT).format == is_formatted


NESTED = '<tool_call>{"name": "f", "parameters": ' + '{"a": ' * 400 + "1" + "}" * 401
LONG = ["<tool_call>" + "[" * 100_000, "<tool_call>" + "9" * 10_000, NESTED]


@pytest.mark.parametrize(
    ("text", "calls"), [*ANSWERS["calls"], *((f"{each}</tool_call>", 1) for each in LONG)]
)
def test_calls_of_malformed_answers_are_counted(text: str, calls: int):
    assert len(parse_answer(text).calls) == calls


@pytest.mark.parametrize(("text", "calls"), ANSWERS["executed"])
def test_calls_that_an_executor_runs_are_counted(text: str, calls: int):
    reward = score_answer(text, ANSWER_ONLY, ToolsOptions(cost="calls"))
    assert (reward.usage.calls, reward.cost, reward.format) == (calls, calls, 0.0)
    assert reward.correctness < 0


@pytest.mark.parametrize(("text", "calls"), ANSWERS["paid"])
def test_a_call_that_toolrl_pays_for_is_not_free(text: str, calls: int):
    options = ToolsOptions(variant="toolrl", cost="calls")
    reward = score_answer(text, TRUTH, options)
    assert (reward.correctness, reward.cost, reward.usage.calls) == (3.0, calls, calls)


def test_all_tokens_at_the_end_of_a_turn_are_no_part_of_the_answer():
    for end in ("<|im_end|><|endoftext|>", "<|endoftext|>\n<|im_end|>\n", "<end_of_turn><eos>"):
        assert score_answer(TRUTH + end, TRUTH, STRICT).task == 4.0
    assert score_answer(TRUTH + "<|im_end|>x", TRUTH, STRICT).format == 0.0
    # What follows the end of a turn is no answer, but a call that an executor may run.
    assert score_answer(f"{TRUTH}<|im_end|>{TRUTH}", TRUTH, STRICT).usage.calls == 2


@pytest.mark.parametrize("depth", [99, 101, 500, 960, 5000])
def test_the_limit_of_nesting_does_not_depend_on_the_callers_stack(depth: int):
    text = answer(f'{{"name": "f", "parameters": {{"a": {"[" * depth}{"]" * depth}}}}}', RIGHT)

    def score(frames: int) -> float:
        return score_answer(text, TRUTH, STRICT).task if frames == 0 else score(frames - 1)

    assert score(0) == score(200)
    assert (score(0) > 2) is (depth < 100)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>",
             RIGHT, "{", "}", '"', "\n", "[", "\\", "\ud800", "\0", "x", '{"name": "\\ud800"}']
        ),
        max_size=30,
    ).map("".join)
)  # fmt: skip
def test_any_text_gets_a_reward_in_the_range(text: str):
    for options, low in ((STRICT, -3.0), (TOOLRL, -3.0)):
        reward = score_answer(text, TRUTH, options)
        assert low <= reward.task <= 4.0
        assert (reward.cost > 0) == (reward.usage.calls > 0)


@pytest.mark.parametrize(
    ("truth", "reason"), [*ANSWERS["malformed truths"], (answer(*[call()] * 65), "at most 64")]
)
def test_a_malformed_ground_truth_is_an_error_that_says_why(truth: str, reason: str):
    with pytest.raises(InvalidRequest, match=f"ground_truth.*{reason}"):
        score_answer(TRUTH, truth, STRICT)


@pytest.mark.parametrize(("one", "other", "equal"), ANSWERS["equal"])
def test_equal_values(one: object, other: object, equal: bool):
    reward = score_answer(answer(call(x=one)), answer(call(x=other)), STRICT)
    assert (reward.correctness == 3.0) is equal


@pytest.mark.parametrize(("arguments", "cause"), ANSWERS["no arguments"])
def test_a_call_may_write_no_arguments_in_any_way(arguments: str, cause: str | None):
    written = answer(f'{{"name": "f", "arguments": {arguments}}}')
    reward = score_answer(written, answer(call("f")), STRICT)
    assert (reward.cause, reward.task == 4.0) == (cause, cause is None)
    wrong = score_answer(written, answer(call("f", a=1)), STRICT)
    assert wrong.cause == (cause or "wrong_arguments")


@pytest.mark.parametrize(("text", "task", "cause"), ANSWERS["without the last tag"])
def test_a_call_that_an_engine_stopped_at_its_last_tag_is_read(text: str, task: float, cause: str):
    reward = score_answer(f"<think>plan</think>\n{text}", TRUTH, STRICT)
    assert (reward.task, reward.cause) == (pytest.approx(task), cause)
    assert reward.cost == 1.0


@pytest.mark.parametrize(("response", "calls"), ANSWERS["mentions"])
def test_a_tag_in_a_sentence_is_no_call(response: str, calls: int):
    """It has no format only if something may run it."""
    reward = score_answer(answer(response=response), ANSWER_ONLY, ToolsOptions(cost="calls"))
    assert (reward.usage.calls, reward.cost) == (calls, calls)
    assert (reward.task == 1.0) is (calls == 0)


def test_a_tag_in_an_argument_is_text():
    for text in ("use <tool_call> now", "<tool_call>", "<tool_call> x"):
        truth = answer(call("f", q=text), call("g"))
        assert score_answer(truth, truth, STRICT).task == 4.0
        assert score_answer(truth.replace("now", "then"), truth, STRICT).usage.calls == 2


def test_calls_whose_values_match_in_other_types_are_matched_in_any_order():
    truth = answer(call("f", a="3.0"), call("f", a=3, b="1.10"))
    calls = [call("f", a=3), call("f", a="3", b="1.10"), call("f", a="3")]
    rewards = {
        score_answer(answer(*each), truth, STRICT).correctness for each in permutations(calls)
    }
    assert len(rewards) == 1
    assert score_answer(answer(*calls[:2]), truth, STRICT).correctness == 3.0


# Families and costs

MIXED = answer(call("web_search", q=1), call("calculator", e=1), call("calculator", e=1), call("x"))


def test_families_by_label_mapping_file_and_patterns_in_this_order():
    tools = [ToolDescription(name="x", description="Looks up a page: search engine")]
    options = ToolsOptions(families={"calculator": "other"})
    usage = score_answer(
        MIXED, TRUTH, options, labels={"web_search": "calculate"}, tools=tools,
        default_labels={"calculator": "search", "web_search": "search"},
    ).usage  # fmt: skip
    assert usage.by_family == {
        "calculate": {"web_search": 1},
        "other": {"calculator": 2},
        "search": {"x": 1},
    }
    assert (usage.calls, usage.repeats) == (4, 1)


def test_patterns_of_a_request_replace_the_built_in_ones():
    options = ToolsOptions(family_patterns={"search": ("CALC*", "?")})
    usage = score_answer(MIXED, TRUTH, options).usage
    assert usage.by_family == {"other": {"web_search": 1}, "search": {"calculator": 2, "x": 1}}


@pytest.mark.parametrize(("cost", "weights", "expected"), ANSWERS["costs"])
def test_costs(cost: str, weights: dict[str, float], expected: float):
    options = ToolsOptions(cost=cost, cost_weights=CostWeights(**weights))
    assert score_answer(MIXED, TRUTH, options).cost == expected
    assert score_answer(ANSWER_ONLY, TRUTH, options).cost == 0.0


def cpu_seconds(text: str, truth: str = TRUTH, options: ToolsOptions = STRICT) -> float:
    started = time.process_time()
    score_answer(text, truth, options)
    return time.process_time() - started


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Measure times without collections of garbage. This file also runs without `conftest.py`."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("variant", ["strict", "toolrl"])
def test_the_time_is_linear_in_the_answer(variant: str):
    """64 wanted calls, up to 10,000 given ones of the same name, and a megabyte of text."""
    options = ToolsOptions(variant=variant)
    truth = answer(*(call("f", q=f"q{n}", k=n % 7) for n in range(64)))
    texts = [answer(*(call("f", q=f"q{n}", k=n % 5) for n in range(n))) for n in (1250, 10_000)]
    score_answer(texts[0], truth, options)
    few, many = (cpu_seconds(text, truth, options) for text in texts)
    assert many < 20 * few


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.usefixtures("no_gc")
def test_integers_with_equal_hashes_take_linear_time():
    """Python's hash of n is that of n + 2^61 - 1."""
    texts = [answer(*(call(a=n * modulus) for n in range(6000))) for modulus in (2**61 - 1, 2**61)]
    assert score_answer(texts[0], TRUTH, STRICT).usage.repeats == 0
    alike, others = (cpu_seconds(text) for text in texts)
    assert alike < 30 * others, "100 times with the hashes of integers"


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("unit", REPEATED["tags"])
@pytest.mark.parametrize("options", [STRICT, TOOLRL], ids=["strict", "toolrl"])
def test_the_time_for_many_tags_is_linear(unit: str, options: ToolsOptions):
    text = "<think>" + unit * (300_000 // len(unit))
    texts = (text, text[len("<think>") :], f"<tool_call>{text}</tool_call>")
    assert sum(cpu_seconds(each, TRUTH, options) for each in texts) < 12
