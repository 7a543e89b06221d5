"""NeMo-RL's `create_env` and `calculate_rewards`, at the commit in sources.toml."""

import json
from typing import Any

import pytest

from rewardfleet import RewardFleetError
from rewardfleet.adapters.nemo_rl import ScoringEnvironment, register

from ..programs import FENCED, HALF, TESTS
from .peers import TIMEOUT, Peer, recorded
from .trainers import bare

pytestmark = pytest.mark.slow


def environment(url: str) -> ScoringEnvironment:
    return ScoringEnvironment({"service": "code", "url": url, **TIMEOUT})


ADAPTERS = {
    "nemo_rl": lambda url, _: environment(url),
    "nemo_rl, down": lambda _, down_url: environment(down_url),
}


@recorded("nemo_rl", ADAPTERS)
def nemo_rl(peer: Peer) -> dict[str, Any]:
    """`create_env` and `calculate_rewards`, with the registered environment as an actor of Ray."""
    bare("pynvml")  # for GPUs
    bare("nemo_rl.utils.logger", Logger=object)  # it imports mlflow
    import ray
    from nemo_rl.environments.utils import create_env
    from nemo_rl.experience.rollouts import calculate_rewards

    register()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)

    def rewards(name: str, url: str, responses: list[str]) -> list[float]:
        actor = create_env("rewardfleet", {"service": "code", "url": url, **TIMEOUT})
        user = {"role": "user", "content": "Add."}
        texts = [{"role": "assistant", "content": each} for each in responses]
        batch = {"message_log": [[user, each] for each in texts]}
        batch["task_name"] = ["rewardfleet"] * len(texts)
        batch["extra_env_info"] = [{"ground_truth": json.dumps(TESTS)}] * len(texts)
        env = peer.remote(name, actor, "step")
        return calculate_rewards(batch, {"rewardfleet": env}).rewards.tolist()

    found: dict[str, Any] = {}
    found["rewards"] = rewards("nemo_rl", peer.direct_url, [FENCED, HALF, "", f"{HALF}<|im_end|>"])
    try:
        found["down"] = rewards("nemo_rl, down", peer.down_url, [FENCED])
    except ray.exceptions.RayTaskError as error:
        found["down is one of ours"] = isinstance(error, RewardFleetError)
    ray.shutdown()
    return found


async def test_conversations_get_their_rewards_and_a_failure_ends_the_step(
    code_url: str, dead_url: str
):
    pytest.importorskip("torch")
    found = await nemo_rl(code_url, dead_url)
    assert found == {"rewards": [1.0, 0.5, 0.0, 0.5], "down is one of ours": True}
