"""Answers in the forms that models write: right programs score 1, and what is no answer 0."""

import json
from collections import Counter
from pathlib import Path

from .conftest import served_code

ANSWERS = Path(__file__).parents[2] / "data" / "code" / "answers.jsonl"


def test_a_right_program_is_paid_in_every_form():
    rows = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    assert len({row["text"] for row in rows}) >= 200
    items = [{"revision": row["text"], "tests": row["tests"], "mode": "all_pass"} for row in rows]
    with served_code(workers=2) as service:
        results = service.client.post("/score/batch", json={"items": items}).json()["results"]
    wrong = Counter(
        row["form"]
        for row, result in zip(rows, results, strict=True)
        if result["score"] != row["score"]
    )
    assert not wrong
