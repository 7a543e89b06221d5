"""Text that a policy wrote is always scored: single, in batches, on `/submit`, by every adapter."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

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
from ...conftest import table
from .conftest import Service, asserts, rows, served_code, stdio

pytestmark = pytest.mark.slow

TESTS, ONE = stdio(("", "never printed by a policy")), stdio(("", "1"))
JUDGED = "Overall judgment: Correct"

#: Texts without a program.
NO_PROGRAM = dict(table("texts_without_programs")) | {
    "too long": "#" * MAX_CHARACTERS + "\nprint('never printed by a policy')"
}


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


def with_fleet(
    service: Service, call: Callable[[RewardFleet], Awaitable[Any]], **options: Any
) -> Any:
    async def score() -> Any:
        async with RewardFleet(code=str(service.client.base_url), **options) as fleet:
            return await call(fleet)

    return asyncio.run(score())


def by_client(service: Service, text: str) -> dict:
    """Alone and in a batch."""
    items = [code_request(text, TESTS)] * 2
    score = with_fleet(service, lambda fleet: fleet.code.score(text, TESTS)).model_dump(mode="json")
    batch = with_fleet(service, lambda fleet: fleet.code.score_batch(items))
    (verdict,) = batch[1].model_dump(mode="json")["verdicts"]
    assert verdict["verdict"] == score["verdicts"][0]["verdict"]
    return score


SENDERS = [by_json, by_json_batch, by_client]


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("text", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_a_text_without_a_program_scores_0_with_compile_error(
    service: Service, send: Callable[[Service, str], dict], text: str
):
    score = send(service, text)
    assert (score["score"], score["status"], score["error"]) == (0.0, "ok", None)
    (verdict,) = score["verdicts"]
    assert verdict["verdict"] == "compile_error" and verdict["stderr"]
    assert not score["suspicions"]


@pytest.mark.parametrize(
    "tests", table("tests_that_nothing_passes"), ids=lambda tests: tests["kind"]
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


@pytest.mark.parametrize("text", NO_PROGRAM.values(), ids=NO_PROGRAM)
def test_it_is_no_critique_and_no_original_program_that_passes(service: Service, text: str):
    item = {"revision": "print(1)", "tests": ONE}
    score = json_of(service.client.post("/score", **body({**item, "critique": text})))
    assert (score["score"], score["critique_valid"]) == (0.0, False)
    item |= {"critique": JUDGED, "original_program": text}
    score = json_of(service.client.post("/score", **body(item)))
    assert (score["score"], score["details"]["judgment_correct"]) == (1.0, 0.0)


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


def test_a_right_program_is_paid_in_every_form_in_which_models_write(service: Service):
    """And what is no answer scores 0."""
    answers = list(rows("answers").values())
    assert len({row["text"] for row in answers}) >= 200
    items = [
        {"revision": row["text"], "tests": row["tests"], "mode": "all_pass"} for row in answers
    ]
    results = service.client.post("/score/batch", json={"items": items}).json()["results"]
    wrong = Counter(
        row["form"]
        for row, result in zip(answers, results, strict=True)
        if result["score"] != row["score"]
    )
    assert not wrong


# Sizes


def long_text(megabytes: int) -> str:
    return "print(1)\n#" + "x" * (megabytes << 20)


def rewards(service: Service, texts: list[str], tests: dict = ONE, **options: Any) -> list[float]:
    """Return the rewards of texts, each alone, then those of all as a batch."""

    async def both(fleet: RewardFleet) -> list[float]:
        singles = await asyncio.gather(*(fleet.code.reward(text, tests) for text in texts))
        return [*singles, *await fleet.code.rewards([code_request(text, tests) for text in texts])]

    return with_fleet(service, both, **options)


def test_a_text_beyond_the_body_limit_scores_0_and_is_not_sent():
    sandbox = FakeSandbox()
    with served_code(sandbox=sandbox, max_body_mb=1) as service:
        texts = ["print(1)", long_text(70), "print(2)"]
        assert rewards(service, texts, TESTS, on_failure="raise") == [0.0] * 6
    assert {job.program for job in sandbox.jobs} == {"print(1)", "print(2)"}


@pytest.mark.parametrize("coalesce_s", [0, 0.05])
def test_a_text_that_the_service_refuses_as_too_large_scores_0(coalesce_s: float):
    """Within the limit of characters, and beyond that of this service's bodies."""
    text = "print(1)\n#" + "\x01" * 900_000  # six bytes each
    with served_code(sandbox=FakeSandbox(RunResult(stdout=b"1")), max_body_mb=2) as service:
        found = rewards(service, ["1", text, "2", text, "3", "4"], coalesce_s=coalesce_s)
    assert found == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0] * 2


def test_a_text_that_does_not_fit_next_to_its_tests_scores_0():
    """Without it, the tests fit. So it is the text that made the request too large."""
    tests = stdio(("", "x" * 600_000))
    with served_code(sandbox=FakeSandbox(), max_body_mb=1) as service:
        assert rewards(service, ["print(1)#" + "x" * 500_000] * 2, tests) == [0.0] * 4


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

    async def score(fleet: RewardFleet) -> None:
        for fields in wrong:
            with pytest.raises(InvalidRequest):
                await fleet.code.reward("print(1)", **fields)
        item = code_request("print(1)", asserts("assert f("))
        with pytest.raises(InvalidRequest, match="not valid Python"):
            await fleet.code.rewards([code_request("print(1)", TESTS), item])

    with_fleet(service, score, on_failure=on_failure)
    for fields in wrong:
        given = {"url": url, "on_failure": on_failure}
        with pytest.raises(InvalidRequest):
            compute_score("x", "print(1)", fields["tests"], {**fields}, **given)


def test_tests_beyond_the_body_limit_always_raise():
    item = code_request("print(1)", stdio(("", "x" * (2 << 20))))

    async def score(fleet: RewardFleet) -> None:
        with pytest.raises(TooLarge):
            await fleet.code.reward(item.revision, item.tests)
        with pytest.raises(TooLarge):
            await fleet.code.rewards([item] * 2)

    with served_code(sandbox=FakeSandbox(), max_body_mb=1) as service:
        with_fleet(service, score, on_failure=math.nan)


def test_a_surrogate_may_be_sent_as_bytes(service: Service):
    """As encoders write it that let surrogates pass."""
    for text, status in (("revision", 200), ("mode", 422)):
        content = json.dumps({"revision": "1", "tests": TESTS, text: "\ud800"}, ensure_ascii=False)
        request = {**body({}), "content": content.encode(errors="surrogatepass")}
        response = service.client.post("/score", **request)
        assert response.status_code == status, response.text
        assert status != 200 or response.json()["verdicts"][0]["verdict"] == "compile_error"
