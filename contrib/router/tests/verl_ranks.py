"""A worker group of two ranks on Ray: `python verl_ranks.py MODEL FOLDER` writes what it computes.

This is a program of its own, since verl reads the environment when it is imported.
"""

import json
import sys
from pathlib import Path

import torch

from rewardfleet_router.verl.__main__ import compose

RANKS = 2
#: The exploration bonus has no gradient in the first one, as all logits are 0.
UPDATES = 2


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return four prompts of different lengths, padded on the left."""
    tokens = torch.randint(3, 12, (4, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    for row, missing in enumerate((0, 3, 5, 1)):
        mask[row, :missing] = 0
        tokens[row, :missing] = 0
    return tokens, mask


def main(model: str, folder: str) -> None:
    config = compose(
        [
            "trainer.device=cpu",
            f"trainer.n_gpus_per_node={RANKS}",
            f"actor_rollout_ref.model.path={model}",
            "router.optim.lr=0.1",
            "router.optim.betas=[0.5,0.9]",
            "router.exploration_coeff=0.2",
        ]
    )
    import ray

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False)

    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    from rewardfleet_router.verl.worker import RouterWorker

    group = RayWorkerGroup(
        resource_pool=RayResourcePool([RANKS], max_colocate_count=1),
        ray_cls_with_init=RayClassWithInitArgs(
            ray.remote(RouterWorker), config=config.actor_rollout_ref, role="actor"
        ),
        device_name="cpu",
    )
    group.init_model()
    input_ids, mask = prompts()
    routes = group.compute_router(
        tu.get_tensordict({"input_ids": input_ids, "attention_mask": mask})
    )
    update = {
        "router_features": routes["router_features"],
        "router_action": torch.tensor([0, 1, 2, 1]),
        "router_advantages": torch.tensor([1.0, -1.0, 0.5, 2.0]),
        "router_labels": torch.full((4,), -1),
    }
    for _ in range(UPDATES):
        metrics = tu.get(group.update_router(tu.get_tensordict(update)), "metrics")
    group.save_router(folder)

    answers = torch.full((4, 2), 5)
    sequence = {
        "prompts": input_ids,
        "responses": answers,
        "input_ids": torch.cat([input_ids, answers], dim=1),
        "attention_mask": torch.cat([mask, torch.ones_like(answers)], dim=1),
        "response_mask": torch.ones_like(answers),
    }
    positions = (sequence["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    data = left_right_2_no_padding(
        tu.get_tensordict({**sequence, "position_ids": positions}, {"temperature": 1.0})
    )
    tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False)
    plain = group.compute_log_prob(data.clone())
    data["router_input_ids"], data["router_attention_mask"] = input_ids, mask
    data["router_action"] = update["router_action"]
    both = group.compute_log_prob(data)
    result = {
        "logits": routes["router_logits"].tolist(),
        "metrics": metrics,
        "plain": sorted(key for key in list(plain.keys()) if key.startswith("router_")),
        "log_probs_shape": len(both["log_probs"].unbind()),
        "router_logits": both["router_logits"].tolist(),
        "router_action": both["router_action"].tolist(),
        "router_log_prob": both["router_log_prob"].tolist(),
    }
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
