"""Adapters that score final answers."""

from collections.abc import Iterator

import pytest

from rewardfleet.adapters import trl, verl

from ..server.answers.conftest import served_answers

TEXTS = ["So it is \\boxed{\\frac{2}{4}}.", "\\boxed{3}", "no idea"]
TRUTHS = ["0.5", 0.5, "0.5"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_answers() as client:
        yield str(client.base_url)


async def test_they_are_compared_with_references(url: str):
    chats = [[{"role": "assistant", "content": each}] for each in TEXTS]
    reward = trl.reward_function("answers", url)
    assert await reward(chats, answer=TRUTHS, reference=TRUTHS) == [1.0, 0.0, 0.0]
    scores = verl.compute_scores([""] * 3, TEXTS, TRUTHS, url=url, service="answers")
    assert [each["reward/correct"] for each in scores] == [1.0, 0.0, 0.0]
    assert scores[1]["reward/cause/wrong_answer"] == 1.0
