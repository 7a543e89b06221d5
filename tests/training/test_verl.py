"""verl's reward loop: its workers on a local Ray, with its own configuration."""

import json
from pathlib import Path

import pytest

from ..programs import HALF, RIGHT, TESTS
from ..third_party.trainers import rollouts_of
from .conftest import reward_loop

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

#: Responses and their rewards, in two groups of four.
RESPONSES = {"": 0.0, RIGHT: 1.0, HALF: 0.5, "print(": 0.0}
RESPONSES |= {"\0\0": 0.0, "I do not know.": 0.0}
RESPONSES |= {"```python\nprint(7)\n```": 0.5, "print('\0')": 0.0}


@pytest.mark.slice
@pytest.mark.usefixtures("local_ray")
def test_an_empty_response_gets_its_reward_and_the_batch_too(code_url: str, tmp_path: Path):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.trainer.ppo.reward import extract_reward

    uids = ["first"] * 4 + ["second"] * 4
    batch = rollouts_of([*RESPONSES], [json.dumps(TESTS)] * len(RESPONSES), uid=uids)
    manager = reward_loop(tmp_path, 2, url=code_url)
    rewards, reported = extract_reward(batch.union(manager.compute_rm_score(batch)))
    assert rewards.sum(-1).tolist() == list(RESPONSES.values())
    assert reported["reward/failed"].tolist() == [0.0] * len(RESPONSES)
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, batch.batch["response_mask"], batch.non_tensor_batch["uid"]
    )
    assert torch.isfinite(advantages).all()
    assert advantages[0].abs().sum() == 0, "an empty response has no token to train"
    assert (advantages.sum(-1)[1:4] > 0).tolist() == [True, True, False]
