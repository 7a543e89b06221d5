"""CTRL's step against a real code service, with stand-ins for the parts of the trainer."""

import asyncio
import json
import math
import pickle
from types import SimpleNamespace

import pytest

from rewardfleet import DeadlineExceeded, InvalidRequest, RewardFleet, Unavailable
from rewardfleet.adapters.ctrl import CritiqueReward, RevisionQuery, build_revision_messages
from rewardfleet_server.testing import wait_until

from ..conftest import DATA, table
from .conftest import ECHO, SUM, TESTS, install_modules, requests_to
from .standin import CharTokenizer, batch_of

pytestmark = pytest.mark.slow

CRITIQUE = "The sum is missing.\n\nOverall judgment: Incorrect"
#: Programs, and the answers of turns that have them; of critiques, the reviews.
PROMPTS = json.loads((DATA / "adapters" / "ctrl_prompts.json").read_text())
ROWS = [
    {"id": "a/0", "problem": "Add the numbers.", "solution": ECHO, "tests": TESTS},
    {"id": "a/1", "problem": "Add numbers.", "solution": ECHO, "tests": json.dumps(TESTS)},
    {"id": 2, "problem": "Add.", "solution": ECHO, "tests": TESTS, "mode": "all_pass"},
]


def reward_fn(
    url: str, rows: list | None = None, *, rules: str = "service", **options: object
) -> CritiqueReward:
    fleet = RewardFleet(code=url, **options)
    return CritiqueReward(fleet, ROWS if rows is None else rows, CharTokenizer(), rules=rules)


def test_responses_are_decoded_without_padding_special_and_masked_tokens():
    """The length extends to the last valid token, which ends the text."""
    ids, texts = ["a/0", "a/1", "2", "3"], ["Überall ok", "", "x", "abcd"]
    batch = batch_of(ids, texts, pad=4)
    batch.batch["attention_mask"][3, 3 + 1] = 0
    parsed = reward_fn("http://127.0.0.1:1").parse_response(batch)
    assert parsed == (ids, ["Überall ok", "", "x", "acd"], [11, 0, 2, 5])


def test_queries_are_in_the_order_of_the_ids_and_may_repeat():
    fn = reward_fn("http://127.0.0.1:1")
    queries, samples = fn.parse_query(["2", "a/0", "2"])
    add = RevisionQuery("Add.", ECHO)
    assert queries == [add, RevisionQuery("Add the numbers.", ECHO), add]
    assert samples == [ROWS[2], ROWS[0], ROWS[2]]
    with pytest.raises(KeyError, match="a/9"):
        fn.parse_query(["a/9"])
    with pytest.raises(ValueError, match="two have the id '2'"):
        reward_fn("http://127.0.0.1:1", [*ROWS, {**ROWS[0], "id": "2"}])
    with pytest.raises(ValueError, match="rules: give one of service, original; not 'seed'"):
        reward_fn("http://127.0.0.1:1", rules="seed")


@pytest.mark.parametrize(("code", "critique", "answer", "review"), PROMPTS["service"])
def test_a_revision_prompt_has_three_turns_that_a_strict_template_accepts(
    code, critique, answer, review
):
    messages = build_revision_messages("Print x. ", code, critique)
    options = {"tokenize": False, "add_generation_prompt": True}
    prompt = CharTokenizer().apply_chat_template(messages, **options)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"].startswith("Print x.\n")
    assert messages[1]["content"] == answer
    assert f"\n\n{review}" in messages[2]["content"]
    assert "hm" not in messages[2]["content"].split()
    assert prompt.endswith("<end><assistant>")
    fn = reward_fn("http://127.0.0.1:1")
    assert fn.build_revision_messages(RevisionQuery("Print x. ", code), critique) == messages


def prompter(kind: str) -> SimpleNamespace:
    """Stand in for `ctrl.gen.prompt`, which is the only source of CTRL's wording."""
    return SimpleNamespace(
        get_gen_prompt=lambda problem: f"{kind}: solve {problem}",
        get_revised_prompt_mt=lambda critique: f"{kind}: {critique} Again.",
    )


@pytest.mark.parametrize(("code", "answer"), PROMPTS["original"])
def test_a_row_of_ctrl_gets_ctrls_own_prompt(monkeypatch, code, answer):
    row = {**ROWS[0], "solution": code, "prompter_type": "mbppplus"}
    fn = reward_fn("http://127.0.0.1:1", [row])
    [query], _ = fn.parse_query(["a/0"])
    with pytest.raises(ImportError, match=r"run this in CTRL, or use .*build_revision"):
        fn.build_revision_messages(query, "Bad.")
    install_modules(monkeypatch, {"ctrl.gen.prompt": {"get_prompter": prompter}})
    assert fn.build_revision_messages(query, "<think>No.</think> Bad.") == [
        {"role": "user", "content": "mbppplus: solve Add the numbers."},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "mbppplus: <think>No.</think> Bad. Again."},
    ]


async def test_rewards_are_pass_rates_in_order(code_url: str):
    """More samples than `max_concurrency`."""
    fn = reward_fn(code_url, max_concurrency=3)
    with pytest.raises(ValueError, match="longer"):
        fn.get_reward_all([CRITIQUE], [SUM] * 2, ROWS[:2])
    _, samples = fn.parse_query(["a/0", "a/1", "2"] * 4)
    revisions = [SUM, ECHO, ECHO, ECHO, SUM, SUM, "import", SUM, ECHO, SUM, SUM, SUM]
    rewards = await fn.get_reward_all([CRITIQUE] * 12, revisions, samples)
    assert rewards == [1.0, 0.5, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert await fn.get_reward_all([], [], []) == []


@pytest.mark.parametrize("case", table("ctrl_rules"))
async def test_verdicts_and_programs_are_found_by_either_rule(code_url, case):
    for rules in ("service", "original"):
        fn = reward_fn(code_url, rules=rules)
        rewards = await fn.get_reward_all([case["critique"]], [case["revision"]], ROWS[:1])
        assert rewards == [case[rules]], rules
        assert fn.metrics["reward/failed"] == 0


@pytest.mark.parametrize("on_failure", ["raise", math.nan])
async def test_an_invalid_sample_always_raises(code_url: str, on_failure):
    """The row is the caller's. `on_failure` is for failures of the fleet."""
    fn = reward_fn(code_url, on_failure=on_failure)
    no_cases = {"kind": "stdio", "cases": []}
    samples = [{"tests": tests} for tests in (no_cases, "{'kind': 'stdio'}", None)]
    for sample in [*samples, {"tests": TESTS, "mode": "most"}]:
        with pytest.raises(InvalidRequest, match="mode" if "mode" in sample else "tests"):
            await fn.get_reward_all([CRITIQUE] * 3, [SUM] * 3, [ROWS[0], sample, ROWS[1]])


async def test_the_first_failure_is_raised_without_waiting_for_the_rest(code_url: str):
    slow = "import time\ntime.sleep(20)"
    rewards = reward_fn(code_url).get_reward_all(
        [CRITIQUE] * 7, [slow] * 6 + [SUM], [*ROWS, *ROWS, {"tests": None}]
    )
    async with asyncio.timeout(15):
        with pytest.raises(InvalidRequest, match="tests"):
            await rewards


async def test_an_outage_is_a_failure_and_not_a_reward(lost_url: str):
    with pytest.raises((Unavailable, DeadlineExceeded)):
        await reward_fn(lost_url, timeout_s=0.5).get_reward_all([CRITIQUE] * 2, [SUM] * 2, ROWS[:2])
    fn = reward_fn(lost_url, timeout_s=0.5, on_failure=math.nan)
    assert all(map(math.isnan, await fn.get_reward_all([CRITIQUE] * 2, [SUM] * 2, ROWS[:2])))
    assert fn.metrics == {"reward/failed": 1, "reward/abstained": 0, "reward/cached": 0}


def test_a_reward_function_can_be_pickled_and_serves_one_event_loop_after_another(code_url: str):
    fn = pickle.loads(pickle.dumps(reward_fn(code_url)))

    async def rewards() -> list[float]:
        return await fn.get_reward_all([CRITIQUE], [SUM], ROWS[:1])

    assert [asyncio.run(rewards()) for _ in range(2)] == [[1.0], [1.0]]
    fn._scorer.loop.close(fn._scorer.fleet.aclose())


def test_programs_run_while_the_trainer_computes_log_probabilities(code_url: str):
    """The steps of CTRL's driver: a task of an event loop that does not run in the meantime."""
    answered = requests_to(code_url)
    loop = asyncio.new_event_loop()
    rewards = reward_fn(code_url).get_reward_all([CRITIQUE] * 4, [SUM] * 4, [{"tests": TESTS}] * 4)
    task = loop.create_task(rewards)
    wait_until(lambda: requests_to(code_url) > answered, 30)  # instead of log-probabilities
    assert loop.run_until_complete(task) == [1.0] * 4
    loop.close()
