"""The hook for `RayPPOTrainer.fit`: routes before generation, and an update of the head after.

In each step of verl's own loop:

1. Before generation, the worker's head chooses a route for each copy of each prompt, and the
   prompts are rewritten for their routes.
2. verl generates, and scores with `reward.compute_score`, which reports `task` and `cost`.
3. After the update of the actor, the head is trained with the advantages of task - λ cost, and the
   tools service updates λ.

In shapes, B is the number of answers of a step, T the padded length of a response.
"""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl import DataProto
from verl.single_controller.ray import RayWorkerGroup, ResourcePoolManager
from verl.trainer.main_ppo_v0 import BaseTaskRunner
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass

from rewardfleet import blocking
from rewardfleet_router.batch import (
    choose_group_routes,
    encode_prompts,
    route_prompts,
    store_routes,
    stored_routes,
)
from rewardfleet_router.budget import RunBudget, new_run_name
from rewardfleet_router.config import ONE_ANSWER, Router
from rewardfleet_router.head import RouterOutput
from rewardfleet_router.labels.row_labels import (
    FAMILIES_COLUMN,
    LABEL_COLUMNS,
    RowLabels,
    labels_of,
    read_sidecar,
)
from rewardfleet_router.objective import (
    broadcast_advantages,
    route_shares,
    router_advantages,
    router_rewards,
    token_level_rewards,
)
from rewardfleet_router.routes import ROUTES

from .settings import CPU
from .worker import RouterWorker

#: The file of a checkpoint with λ, the budget, and what else the driver resumes from.
STATE_FILE = "router.json"
#: What verl calls a dataset without `data_source`.
_DATA_SOURCE = "rlla"


class Stopped(Exception):
    """The run was stopped by a signal; its checkpoint, if configured, is written."""


class RouterPPOTrainer(RayPPOTrainer):  # type: ignore[misc]  # verl is not installed where types are checked
    """verl's trainer, with a router.

    Args:
        config: verl's configuration, with `router` and `trainer.save_on_exit`.
        stops: Set to end the run after the step in progress.
        arguments: As in verl.

    Attributes:
        multiplier: λ of the next step.

    Raises:
        ValueError: A step has one answer only.
    """

    def __init__(self, config: DictConfig, *, stops: threading.Event, **arguments: Any) -> None:
        if config.actor_rollout_ref.rollout.n * config.data.train_batch_size < 2:
            raise ValueError(ONE_ANSWER)
        super().__init__(config, **arguments)
        self._stops = stops
        self._router = Router.model_validate(OmegaConf.to_container(config.router))
        self._sidecar = read_sidecar(self._router.labels) if self._router.labels else None
        self._budget = RunBudget(
            blocking.RewardFleet(tools=self._router.url, timeout_s=self._router.timeout_s),
            new_run_name(config.trainer.project_name, config.trainer.experiment_name),
            self._router.budget_options(),
        )
        self.multiplier = self._router.initial_lambda

    def init_workers(self) -> None:
        """Start the workers, and put the router in front of the rollout."""
        super().init_workers()
        self._generate = self.async_rollout_manager.generate_sequences
        self.async_rollout_manager.generate_sequences = self.generate_routed

    # Before generation.

    def generate_routed(self, prompts: DataProto) -> DataProto:
        """Choose routes, rewrite the prompts, and generate.

        Args:
            prompts: verl's `gen_batch`, with all copies of each prompt.

        Returns:
            What verl generates (reward functions see `extra_info.router_route` and
            `extra_info.tool_families`), and `router_logits`, `router_action`, `router_log_prob`,
            `router_features` and `router_labels` in `non_tensor_batch`.
        """
        fields = prompts.non_tensor_batch
        labels = [self._labels(fields, row) for row in range(len(prompts))]
        chosen, features = self._choose(prompts)
        rewritten = route_prompts(
            [list(messages) for messages in fields["raw_prompt"]],
            chosen.action,
            [each.families for each in labels],
        )
        routes = [ROUTES[action].value for action in chosen.action.tolist()]
        infos = [
            {**(info or {}), FAMILIES_COLUMN: dict(each.families), "router_route": route}
            for info, each, route in zip(fields["extra_info"], labels, routes, strict=True)
        ]
        fields["raw_prompt"] = _objects(rewritten)
        fields["extra_info"] = _objects(infos)
        fields.setdefault("data_source", _objects([_DATA_SOURCE] * len(prompts)))
        output = self._generate(prompts)
        store_routes(output, chosen)
        output.non_tensor_batch["router_features"] = features
        output.non_tensor_batch["router_labels"] = np.array([each.action for each in labels])
        return output

    def _labels(self, fields: dict[str, NDArray[Any]], row: int) -> RowLabels:
        names = {"extra_info", *LABEL_COLUMNS} & fields.keys()
        return labels_of({name: fields[name][row] for name in names}, self._sidecar)

    def _choose(self, prompts: DataProto) -> tuple[RouterOutput, NDArray[np.float32]]:
        """Return a route per copy, and the features [B, H] that the head saw."""
        fields = prompts.non_tensor_batch
        uids, first, copies = np.unique(
            fields["uid"].astype(str), return_index=True, return_inverse=True
        )
        data = self.config.data
        encoded = encode_prompts(
            [list(fields["raw_prompt"][row]) for row in first],
            self.tokenizer,
            data.max_prompt_length,
            truncation=data.truncation,
            template=dict(data.get("apply_chat_template_kwargs", {})),
        )
        # Each rank gets equally many prompts; the first ones may be repeated at the end.
        ranks = self._get_dp_size(self.actor_rollout_wg, "actor")
        padded = torch.arange(-(-len(uids) // ranks) * ranks) % len(uids)
        output = self.actor_rollout_wg.compute_router(
            tu.get_tensordict(
                {name: encoded[name][padded] for name in ("input_ids", "attention_mask")}
            )
        )
        seed = np.random.SeedSequence(
            [
                self.config.data.get("seed") or 0,
                self.global_steps,
                int(prompts.meta_info.get("validate", False)),
            ]
        )
        chosen = choose_group_routes(
            output["router_logits"][copies],
            fields["uid"],
            routes_per_prompt=self._router.routes_per_prompt,
            generator=torch.Generator().manual_seed(int(seed.generate_state(1)[0])),
        )
        return chosen, output["router_features"][copies].numpy()

    # After generation.

    def _update_actor(self, batch: DataProto) -> DataProto:
        output = super()._update_actor(batch)
        output.meta_info["metrics"].update(self._update_router(batch))
        trainer = self.config.trainer
        is_last = self.global_steps >= self.total_training_steps
        # verl saves after the last step if it saves at all.
        if trainer.save_on_exit and (self._stops.is_set() or (is_last and trainer.save_freq <= 0)):
            self._save_checkpoint()
        if self._stops.is_set():
            raise Stopped(f"stopped after step {self.global_steps}")
        return output

    def _update_router(self, batch: DataProto) -> dict[str, float]:
        """Train the head and update λ. Return metrics.

        The batch gets `router_token_level_rewards`, `router_advantages` and `router_returns`,
        [B, T].
        """
        fields = batch.non_tensor_batch
        if not {"task", "cost"} <= fields.keys():
            raise ValueError(
                "reward.custom_reward_function: report `task` and `cost` of each answer, as "
                "rewardfleet_router.verl.reward does"
            )
        task, cost = fields["task"].astype(float), fields["cost"].astype(float)
        mask = batch.batch["response_mask"]
        index = _index(batch) if self.config.actor_rollout_ref.rollout.n > 1 else None
        values = router_advantages(
            task, cost, self.multiplier, index, method=self._router.advantage
        )
        tokens, returns = broadcast_advantages(values, mask)
        rewards = router_rewards(task, cost, self.multiplier)
        batch.batch["router_token_level_rewards"] = token_level_rewards(rewards, mask)
        batch.batch["router_advantages"], batch.batch["router_returns"] = tokens, returns
        routes = stored_routes(batch)
        metrics = self._step_head(batch, routes.action, values)
        paid = self.multiplier
        self.multiplier = self._budget.update(self.global_steps, task, cost)
        return {
            "router/lambda": paid,
            "router/mean_cost": float(cost.mean()),
            "router/mean_task_reward": float(task.mean()),
            **route_shares(routes.action),
            **metrics,
        }

    def _step_head(self, batch: DataProto, action: Tensor, values: Tensor) -> dict[str, float]:
        fields = batch.non_tensor_batch
        output = self.actor_rollout_wg.update_router(
            tu.get_tensordict(
                {
                    "router_features": torch.as_tensor(np.stack(fields["router_features"])),
                    "router_action": action,
                    "router_advantages": values,
                    "router_labels": torch.as_tensor(fields["router_labels"].astype(np.int64)),
                }
            )
        )
        metrics: dict[str, float] = tu.get(output, "metrics")
        return metrics

    # Checkpoints.

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        self.actor_rollout_wg.save_router(str(folder.absolute()))
        state = {
            "step": self.global_steps,
            "run": self._budget.run,
            "multiplier": self.multiplier,
            "budget": self._budget.checkpoint,
            "routes": [route.value for route in ROUTES],
            "router": self._router.model_dump(mode="json"),
        }
        (folder / STATE_FILE).write_text(json.dumps(state, indent=2) + "\n")
        # verl names the checkpoint as the latest one when all of it is there.
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        checkpoint = None
        if self.global_steps > 0:
            folder = self._loaded_folder()
            self.actor_rollout_wg.load_router(str(folder.absolute()))
            state = json.loads((folder / STATE_FILE).read_text())
            self._budget.run, checkpoint = state["run"], state["budget"]
        self.multiplier = self._budget.open(checkpoint)

    def _loaded_folder(self) -> Path:
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"


class _CpuPools(ResourcePoolManager):  # type: ignore[misc]  # likewise
    """Resource pools of processes; verl would count accelerators."""

    def _check_resource_available(self) -> None:
        pass


class RouterTaskRunner(BaseTaskRunner):  # type: ignore[misc]  # likewise
    """The process that runs verl's loop; an actor of Ray."""

    def __init__(self) -> None:
        super().__init__()
        self._stops = threading.Event()

    def stop(self) -> None:
        """End the run after the step in progress, with a checkpoint if so configured."""
        self._stops.set()

    def run(self, config: DictConfig) -> None:
        """Train."""
        OmegaConf.resolve(config)
        self.add_actor_rollout_worker(config)
        (role,) = self.role_worker_mapping
        self.role_worker_mapping[role] = ray.remote(RouterWorker)
        self.add_critic_worker(config)
        self.add_reward_model_resource_pool(config)
        pools = self.init_resource_pool_mgr(config)
        if config.trainer.device == CPU:
            pools = _CpuPools(resource_pool_spec=pools.resource_pool_spec, mapping=pools.mapping)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        trainer = RouterPPOTrainer(
            config,
            stops=self._stops,
            tokenizer=model.tokenizer,
            processor=model.processor,
            role_worker_mapping=self.role_worker_mapping,
            resource_pool_manager=pools,
            ray_worker_group_cls=RayWorkerGroup,
        )
        trainer.init_workers()
        try:
            trainer.fit()
        except Stopped as stopped:
            print(stopped)


def _index(batch: DataProto) -> list[str]:
    """Return the group of each answer: `extra_info.index`, else verl's own."""
    fields = batch.non_tensor_batch
    return [
        str((info or {}).get("index", uid))
        for info, uid in zip(fields["extra_info"], fields["uid"], strict=True)
    ]


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return a one-dimensional array of any objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
