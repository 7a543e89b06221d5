"""Who calls the answers service: trainers' wires, the client and the commands."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from rewardfleet import InvalidRequest, RewardFleet, answers_request, blocking
from rewardfleet.commands.main import main

from ..http.test_trainers import PROMPT, answer, openrlhf, refusal, rollout, slime

TEXT = "So it is \\boxed{\\frac{2}{4}}."
#: References of trainers: a plain one, and those with further fields.
LABELS = [0.5, "1/2", {"answer": "0.5"}, '{"ground_truth": 0.4, "tolerance": 0.5}', ["7", "0.5"]]


@pytest.fixture(scope="module")
def url(service: httpx.Client) -> str:
    return str(service.base_url)


@pytest.mark.parametrize("label", LABELS, ids=str)
def test_wires_of_trainers(service: httpx.Client, label: object):
    for text, reward in ((TEXT, 1), ("So it is \\boxed{3}.", 0), ("", 0)):
        found = answer(service, "/get_reward", openrlhf(f"{PROMPT}{text}<|im_end|>", label))
        assert (found["rewards"], found["extra_logs"]["correct"]) == ([reward], [reward])
        assert answer(service, "/slime", slime(text, label)) == reward
        assert answer(service, "/verify", rollout(text, ground_truth=label))["reward"] == reward
        step = {"action": {"message": text, "ground_truth": label}}
        assert answer(service, "/step", step)["reward"] == reward


def test_a_wire_names_what_is_wrong_with_a_label(service: httpx.Client):
    assert "ground_truth: reference: give a text" in refusal(service, "/slime", slime(TEXT, " "))
    step = {"action": {"message": None, "ground_truth": 5}}
    assert answer(service, "/step", step)["reward"] is None


def test_the_client(url: str):
    async def rewards() -> list[float]:
        async with RewardFleet(answers=url) as fleet:
            one = await fleet.answers.reward(TEXT, [7, 0.5])
            found = await fleet.answers.score("36 km/h", "10", units="m/s", run="r", step=1)
            batch = await fleet.answers.score_batch([answers_request("B", "A")])
            with pytest.raises(InvalidRequest, match="reference"):
                await fleet.answers.score("5", "maybe", form="yes_no")
            return [one, found.score, batch[0].score]

    assert asyncio.run(rewards()) == [1.0, 1.0, 0.0]
    with pytest.raises(InvalidRequest, match="give a text of 1 to"):
        answers_request("5", "")
    with blocking.RewardFleet(answers=url) as fleet:
        found = fleet.answers.score("{}", schema={"type": "object"})
        assert (found.score, found.details["rule"]) == (1.0, "whole_text")


def test_the_command_scores_rows(url: str, tmp_path: Path):
    rows = [
        {"response": TEXT, "answer": "A half is\n#### 0.5"},
        {"response": "\\boxed{36 km/h}", "answer": "10", "units": "m/s"},
        {"response": "\\boxed{3}", "ground_truth": "0.5"},
        {"response": [{"role": "assistant", "content": "no idea"}], "label": "B"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    flags = ["--url", url, "-o", str(tmp_path / "out"), "--format", "jsonl"]
    assert main(["score", "answers", str(tmp_path / "rows.jsonl"), *flags]) == 0
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    scores = [json.loads(line) for line in part.read_text().splitlines()]
    causes = [None, None, "wrong_answer", "unreadable"]
    assert [(each["score"], each["cause"]) for each in scores] == [
        *zip([1, 1, 0, 0], causes, strict=True)
    ]
