"""Answers in the forms that models write: right programs score 1, and what is no answer 0."""

from collections import Counter

from .conftest import Service, rows


def test_a_right_program_is_paid_in_every_form(service: Service):
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
