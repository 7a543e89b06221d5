"""The answers service over real HTTP: scores, refusals, and what is cached."""

import httpx
import pytest

from ...conftest import table
from .conftest import metric, score, served_answers

#: What the table expects: fields of the score and of its details.
EXPECTED = ("score", "cause", "rule", "form", "answer")
#: Equal, which math-verify does not find.
DISPUTED = ("\\boxed{e^{i\\pi}}", "-1")


@pytest.mark.parametrize("row", table("scored_answers"))
def test_answers(service: httpx.Client, row: list):
    response, fields, *expected = row
    found = score(service, response, **{"reference": None, **fields})
    shown = {**dict.fromkeys(EXPECTED), **found["details"], **found}
    assert [shown[name] for name in EXPECTED] == expected
    assert found["components"] == {"correct": found["score"]}


@pytest.mark.parametrize(("fields", "reason"), table("refused_references"))
def test_what_the_caller_wrote_may_be_invalid(service: httpx.Client, fields: dict, reason: str):
    """The reason has the name of the field, and what is accepted or what is wrong with it."""
    refused = service.post("/score", json={"response": "\\boxed{5 kg}", **fields})
    assert (refused.status_code, refused.json()["kind"]) == (422, "invalid")
    assert reason in refused.json()["detail"]


@pytest.mark.parametrize("response", [None, []])
def test_no_response_is_no_wrong_answer(service: httpx.Client, response: object):
    found = score(service, response, "5")
    assert (found["score"], found["status"], found["cause"]) == (None, "abstained", "no_answer")


def test_a_batch_has_the_outcome_of_each_item(service: httpx.Client):
    items = [
        {"response": "So \\boxed{x+1}", "reference": "1+x"},
        {"response": "5", "ground_truth": 6},
        {"response": "5", "reference": ""},
        {"response": "7", "answer": ["5", "7"]},
        {"response": None, "label": "5"},
    ]
    results = service.post("/score/batch", json={"items": items}).json()["results"]
    assert [each["score"] for each in results] == [1, 0, None, 1, None]
    assert [each.get("cause") for each in results] == [
        None, "wrong_answer", "invalid", None, "no_answer"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accept", "expected"), [("both", (0, "checkers_disagree")), ("any", (1, None))]
)
def test_checkers_that_disagree_are_counted_and_a_setting_decides(
    accept: str, expected: tuple[float, str | None]
):
    with served_answers(accept=accept) as client:
        assert score(client, "x+1", "1+x")["score"] == 1
        assert metric(client, "checker_disagreements_total") == 0
        found = score(client, *DISPUTED, form="expression")
        assert (found["score"], found["cause"]) == expected
        verdicts = [found["details"][name] for name in ("math_verify", "numeric")]
        assert sorted(verdicts) == ["different", "equal"]
        assert metric(client, "checker_disagreements_total") == 1


def test_equal_answers_are_cached_whatever_rule_found_them(service: httpx.Client):
    texts = ["\\boxed{y^2-4}", "The answer is $y^2-4$.", "\\boxed{y^2-4}"]
    found = [score(service, each, "(y-2)(y+2)") for each in texts]
    assert [each["cached"] for each in found] == [False, True, True]
    rules = ["last_box", "answer_phrase", "last_box"]
    assert [each["details"]["rule"] for each in found] == rules
    others = [{"tolerance": 0.1}, {"form": "equation"}]
    assert not any(score(service, texts[0], "(y-2)(y+2)", **each)["cached"] for each in others)


def test_a_number_and_a_formula_have_the_provenance_of_the_checkers(service: httpx.Client):
    found = score(service, "5", "5")["provenance"]
    assert {"math-verify", "sympy", "pint", "jsonschema", "accept"} <= found.keys()
