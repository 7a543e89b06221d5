"""Text that a policy wrote is always scored: single, in batches, on `/submit`, by every adapter."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardfleet import InvalidRequest, RewardFleet, TooLarge, code_request
from rewardfleet.adapters.ctrl import CritiqueReward
from rewardfleet.adapters.verl import compute_score
from rewardfleet.wire.policy_text import MAX_CHARACTERS
from rewardfleet_server.code.sandboxes import RunResult
from rewardfleet_server.testing import FakeSandbox

from ...adapters.standin import CharTokenizer
from .conftest import Service, asserts, functional, served_code, stdio

pytestmark = pytest.mark.slow

TESTS = stdio(("", "never printed by a policy"))
JUDGED = "Overall judgment: Correct"

#: Texts without a program.
NO_PROGRAM = {
    "empty": "",
    "white space": " \n\t\u3000\x0b",
    "comments": "# I cannot solve this.\n\n   # Sorry.",
    "empty block": "Here it is:\n```python\n```\nDone.",
    "block of white space": "```python\n \n\t\n```",
    "NUL": "\0",
    "NUL in a program": "print('never printed by a policy')\0",
    "NUL in a block": "```python\nprint('never printed by a policy')  # \0\n```",
    "lone surrogate": "\ud800",
    "low surrogate in a string": "print('never printed by a policy', '\udfff')",
    "surrogates in the wrong order": "x = '\udc00\ud800'",
    "prose": "I cannot solve this problem, sorry.",
    "unfinished thinking": "<think>The sum is",
    "unfinished program": "def f(:",
    "too long": "#" * MAX_CHARACTERS + "\nprint('never printed by a policy')",
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served_code(workers=2) as service:
        yield service


def by_json(service: Service, text: str) -> dict:
    """Send a text as `json.dumps` writes it: with the escapes of lone surrogates."""
    return json_of(service.client.post("/score", **body({"revision": text, "tests": TESTS})))


def by_json_batch(service: Service, text: str) -> dict:
    items = [{"revision": text, "tests": TESTS}, {"revision": "1", "tests": TESTS}]
    return json_of(service.client.post("/score/batch", **body({"items": items})))["results"][0]


def body(content: dict) -> dict:
    headers = {"content-type": "application/json"}
    return {"content": json.dumps(content).encode(), "headers": headers}


def json_of(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def with_fleet(service: Service, call: Callable[[RewardFleet], Awaitable]) -> dict:
    async def score() -> dict:
        async with RewardFleet(code=str(service.client.base_url)) as fleet:
            return (await call(fleet)).model_dump(mode="json")

    return asyncio.run(score())


def by_client(service: Service, text: str) -> dict:
    return with_fleet(service, lambda fleet: fleet.code.score(text, TESTS))


def by_client_batch(service: Service, text: str) -> dict:
    async def first(fleet: RewardFleet):
        return (await fleet.code.score_batch([code_request(text, TESTS)] * 2))[1]

    return with_fleet(service, first)


SENDERS = [by_json, by_json_batch, by_client, by_client_batch]


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("text", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_a_text_without_a_program_scores_0_with_compile_error(
    service: Service, send: Callable[[Service, str], dict], text: str
):
    score = send(service, text)
    assert (score["score"], score["status"], score["error"]) == (0.0, "ok", None)
    (verdict,) = score["verdicts"]
    assert verdict["verdict"] == "compile_error"
    assert verdict["stderr"]
    assert not score["suspicions"]


@pytest.mark.parametrize(
    "tests",
    [
        stdio(("", "")),
        functional("f", ([], None)),
        asserts("assert f() or True"),
        {"kind": "dataset", "dataset": "mbppplus", "row": {"test_list": ["assert f() or True"]}},
    ],
    ids=lambda tests: tests["kind"],
)
def test_tests_that_nothing_can_pass_are_not_passed_by_an_empty_text(
    service: Service, tests: dict[str, object]
):
    for text in ("", "\n", "# nothing", "```\n```"):
        score = service.score(text, tests)
        assert score["score"] == 0.0
        assert score["verdicts"][0]["verdict"] == "compile_error"


@pytest.mark.parametrize("text", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_sandboxfusions_routes_judge_it(service: Service, text: str):
    test = [{"input": {"stdin": ""}, "output": {"stdout": "never printed by a policy"}}]
    config = {"dataset_type": "CommonOJ", "language": "python", "provided_data": {"test": test}}
    submission = {"dataset": "x", "id": 1, "completion": text, "config": config}
    result = json_of(service.client.post("/submit", **body(submission)))
    assert result["accepted"] is False
    run = {"code": text, "language": "python"}
    status = json_of(service.client.post("/run_code", **body(run)))["status"]
    if len(text) > MAX_CHARACTERS:
        assert status == "Failed"


@pytest.mark.parametrize("text", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_adapters_judge_it(service: Service, text: str):
    url = str(service.client.base_url)
    rows = [{"id": "a", "problem": "p", "solution": "1", "tests": TESTS}]
    reward_fn = CritiqueReward(RewardFleet(code=url), rows, CharTokenizer())
    rewards = asyncio.run(reward_fn.get_reward_all([JUDGED, text], [text, "1"], rows * 2))
    assert rewards == [0.0, 0.0]
    result = compute_score("x", text, TESTS, url=url)
    assert (result["score"], result["reward/failed"]) == (0.0, 0.0)
    result = compute_score("x", text, TESTS, {"revision": "1"}, url=url)
    assert (result["score"], result["reward/critique_valid"]) == (0.0, 0.0)


@pytest.mark.parametrize("critique", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_a_critique_without_a_judgment_scores_0_whatever_it_contains(
    service: Service, critique: str
):
    item = {"revision": "print(1)", "tests": stdio(("", "1")), "critique": critique}
    score = json_of(service.client.post("/score", **body(item)))
    assert (score["score"], score["critique_valid"]) == (0.0, False)


def test_an_original_program_that_is_no_program_fails(service: Service):
    for original in NO_PROGRAM.values():
        item = {"revision": "print(1)", "tests": stdio(("", "1")), "critique": JUDGED}
        score = json_of(
            service.client.post("/score", **body({**item, "original_program": original}))
        )
        assert score["score"] == 1.0
        assert score["components"]["judgment_correct"] == 0.0


TEXTS = st.text(st.characters(exclude_categories=()), max_size=200) | st.text(
    "\0\ud800\udfff `~\n\t#'\"\\{}[]():,.abpy0", max_size=200
)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_any_text_is_scored_everywhere(service: Service, text: str):
    scores = [send(service, text) for send in SENDERS]
    assert all(score["status"] == "ok" and score["score"] == 0.0 for score in scores)
    assert len({score["verdicts"][0]["verdict"] for score in scores}) == 1
    item = {"revision": "1", "tests": TESTS, "critique": text}
    assert json_of(service.client.post("/score", **body(item)))["score"] == 0.0
    test_sandboxfusions_routes_judge_it(service, text)
    test_adapters_judge_it(service, text)


# Sizes


def long_text(megabytes: int) -> str:
    return "print(1)\n#" + "x" * (megabytes << 20)


def test_a_text_beyond_the_body_limit_scores_0_and_is_not_sent():
    sandbox = FakeSandbox()
    with served_code(sandbox=sandbox, max_body_mb=1) as service:
        url = str(service.client.base_url)
        items = [code_request(text, TESTS) for text in ("print(1)", long_text(100), "print(2)")]

        async def rewards() -> list[float]:
            async with RewardFleet(code=url, on_failure="raise") as fleet:
                single = await fleet.code.reward(long_text(70), TESTS)
                return [single, *await fleet.code.rewards(items)]

        assert asyncio.run(rewards()) == [0.0] * 4
        assert len(sandbox.jobs) == 2


@pytest.mark.parametrize("coalesce_s", [0, 0.05])
def test_a_text_that_the_service_refuses_as_too_large_scores_0(coalesce_s: float):
    """Within the limit of characters, and beyond that of this service's bodies."""
    text = "print(1)\n#" + "\x01" * 900_000  # six bytes each
    with served_code(sandbox=FakeSandbox(RunResult(stdout=b"1")), max_body_mb=2) as service:

        async def rewards() -> list[float]:
            url = str(service.client.base_url)
            async with RewardFleet(code=url, coalesce_s=coalesce_s) as fleet:
                tests = stdio(("", "1"))
                singles = (fleet.code.reward(each, tests) for each in ("1", text, "2", text))
                batch = [code_request(each, tests) for each in ("1", text, "2", text, "3")]
                return [*await asyncio.gather(*singles), *await fleet.code.rewards(batch)]

        assert asyncio.run(rewards()) == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]


def test_a_text_that_does_not_fit_next_to_its_tests_scores_0():
    """Without it, the tests fit. So it is the text that made the request too large."""
    with served_code(sandbox=FakeSandbox(), max_body_mb=1) as service:

        async def rewards() -> list[float]:
            async with RewardFleet(code=str(service.client.base_url)) as fleet:
                tests = stdio(("", "x" * 600_000))
                single = await fleet.code.reward("print(1)#" + "x" * 500_000, tests)
                return [single, *await fleet.code.rewards([code_request("#" * 500_000, tests)] * 2)]

        assert asyncio.run(rewards()) == [0.0] * 3


def test_many_small_items_beyond_the_body_limit_are_sent_in_smaller_batches():
    with served_code(sandbox=FakeSandbox(RunResult(stdout=b"1")), max_body_mb=1) as service:

        async def rewards() -> list[float]:
            async with RewardFleet(code=str(service.client.base_url)) as fleet:
                tests = stdio(("", "1"))
                texts = [f"{number}\n#" + "x" * 100_000 for number in range(40)]
                return await fleet.code.rewards([code_request(text, tests) for text in texts])

        assert asyncio.run(rewards()) == [1.0] * 40


def test_programs_with_large_tables_fit_into_one_batch(service: Service):
    """The commas of a program do not count as fields of the body."""
    table = f"t = '{'1,' * 12_000}'.split(',')\nprint(len(t) - 1)"
    items = [{"revision": f"{table}\n# {n}", "tests": stdio(("", "12000"))} for n in range(200)]
    results = json_of(service.client.post("/score/batch", **body({"items": items})))["results"]
    assert [each["score"] for each in results] == [1.0] * 200


# What the caller wrote


@pytest.mark.parametrize("on_failure", ["raise", math.nan, 0.0])
def test_what_the_caller_wrote_always_raises(service: Service, on_failure: float | str):
    url = str(service.client.base_url)
    wrong = [
        {"tests": None},
        {"tests": stdio()},
        {"tests": asserts("assert f(")},
        {"tests": TESTS, "limits": {"cpu_s": 1000}},
        {"tests": TESTS, "mode": "most"},
        {"tests": stdio(("\ud800", "1"))},
    ]

    async def score() -> None:
        async with RewardFleet(code=url, on_failure=on_failure) as fleet:
            for fields in wrong:
                with pytest.raises(InvalidRequest):
                    await fleet.code.reward("print(1)", **fields)
            item = code_request("print(1)", asserts("assert f("))
            with pytest.raises(InvalidRequest, match="not valid Python"):
                await fleet.code.rewards([code_request("print(1)", TESTS), item])

    asyncio.run(score())
    for fields in wrong:
        with pytest.raises(InvalidRequest):
            compute_score(
                "x", "print(1)", fields["tests"], {**fields}, url=url, on_failure=on_failure
            )


def test_tests_beyond_the_body_limit_always_raise():
    with served_code(sandbox=FakeSandbox(), max_body_mb=1) as service:

        async def score() -> None:
            url = str(service.client.base_url)
            async with RewardFleet(code=url, on_failure=math.nan) as fleet:
                large = stdio(("", "x" * (2 << 20)))
                with pytest.raises(TooLarge):
                    await fleet.code.reward("print(1)", large)
                with pytest.raises(TooLarge):
                    await fleet.code.rewards([code_request("print(1)", large)] * 2)

        asyncio.run(score())


def test_a_lone_surrogate_that_the_caller_wrote_is_invalid(service: Service):
    for item in (
        {"revision": "\ud800", "tests": stdio(("", "\ud800"))},
        {"revision": "1", "tests": asserts("assert '\udfff'")},
        {"revision": "1", "tests": TESTS, "mode": "\ud800"},
    ):
        assert service.client.post("/score", **body(item)).status_code == 422


def test_a_surrogate_may_be_sent_as_bytes(service: Service):
    """As encoders write it that let surrogates pass."""
    for text, status in (("revision", 200), ("mode", 422)):
        content = json.dumps({"revision": "1", "tests": TESTS, text: "\ud800"}, ensure_ascii=False)
        request = {**body({}), "content": content.encode(errors="surrogatepass")}
        response = service.client.post("/score", **request)
        assert response.status_code == status, response.text
        assert status != 200 or response.json()["verdicts"][0]["verdict"] == "compile_error"
