"""The worker: verl's actor and rollout, with a router head next to the actor.

The head reads the hidden states of the actor, and does not change the actor's weights; it has an
optimizer of its own. Each data-parallel rank has a copy of it; their gradients are averaged.

In shapes, B is the number of prompts, P the padded length of a prompt, H the hidden size.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.models.transformers import monkey_patch
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker

from rewardfleet_router.checkpoint import load_head, save_head
from rewardfleet_router.config import Router
from rewardfleet_router.head import (
    RouterHead,
    choose_routes,
    last_hidden_state,
    log_prob_of,
)
from rewardfleet_router.objective import (
    entropy_weight,
    exploration_loss,
    router_loss,
    schedule_progress,
)
from rewardfleet_router.optimizers import schedule_factor

from .hf_rollout import generate, register_hf_rollout
from .settings import CPU

#: The file of a checkpoint with the state of the head's optimizer and of its learning rate.
OPTIMIZER_FILE = "router_optimizer.pt"

EngineRegistry.register(model_type="language_model", backend="fsdp2", device=CPU)(
    FSDPEngineWithLMHead
)
register_hf_rollout()

_trl = find_spec("trl")
if _trl and _trl.origin and not (Path(_trl.origin).parent / "experimental" / "ppo").exists():
    # verl 0.9 patches a class of TRL wherever TRL is installed; newer TRL does not have it.
    monkey_patch.is_trl_available = lambda: False


class RouterWorker(ActorRolloutRefWorker):  # type: ignore[misc]  # verl is not installed where types are checked
    """verl's worker of the actor, the rollout and the reference policy, with a router head.

    Args:
        config: `actor_rollout_ref`, with the configuration of the router as `router`.
        role: As in verl.
        kwargs: As in verl.
    """

    def __init__(self, config: DictConfig, role: str, **kwargs: Any) -> None:
        super().__init__(config, role, **kwargs)
        self.router_config = Router.model_validate(OmegaConf.to_container(config.router))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the actor and the rollout as verl does, and the head."""
        if get_device_name() == CPU:
            initialize_global_process_group_ray(backend="cpu:gloo")
        super().init_model()
        model = self.actor.model_config.hf_config.get_text_config()
        self.router_head = RouterHead(model.hidden_size, self.router_config.pooling)
        self.router_head.to(get_device_id())
        optim = self.router_config.optim
        self.router_optimizer = torch.optim.AdamW(
            self.router_head.parameters(),
            lr=self.config.actor.optim.lr if optim.lr is None else optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )
        steps = self.config.actor.optim.total_training_steps
        self.router_steps = steps
        self.router_schedule = torch.optim.lr_scheduler.LambdaLR(
            self.router_optimizer, lambda step: schedule_factor(optim, step, steps)
        )

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_router(self, data: TensorDict) -> TensorDict:
        """Return `router_logits` [B, 3] and `router_features` [B, H], float32.

        Args:
            data: `input_ids` and `attention_mask`, [B, P], of prompts.
        """
        features = self._features(data["input_ids"], data["attention_mask"])
        with torch.no_grad():
            logits = self.router_head.classify(features)
        return tu.get_tensordict({"router_logits": logits, "router_features": features}).cpu()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Return the log-probabilities as verl does, and routes if the data has their prompts.

        Args:
            data: As in verl; optionally with `router_input_ids` and `router_attention_mask`,
                [B, P], prompts before they were rewritten, and `router_action`, [B].

        Returns:
            As in verl; for these prompts also `router_logits` [B, 3], `router_action` [B], the
            given actions or else the most probable ones, and `router_log_prob` [B].
        """
        output = super().compute_log_prob(data)
        if output is None or "router_input_ids" not in data:
            return output
        features = self._features(data["router_input_ids"], data["router_attention_mask"])
        with torch.no_grad():
            chosen = choose_routes(self.router_head.classify(features), sample=False)
        action = data.get("router_action", None)
        if action is not None:
            action = action.to(chosen.logits.device)
            chosen = chosen._replace(action=action, log_prob=log_prob_of(chosen.logits, action))
        for name, value in chosen._asdict().items():
            output[f"router_{name}"] = value.cpu()
        return output

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_router(self, data: TensorDict) -> TensorDict:
        """Do one step of the head's optimizer; return metrics as `metrics`.

        Args:
            data: `router_features` [B, H], `router_action` [B], `router_advantages` [B] and
                `router_labels` [B], -1 where there is none.
        """
        data = data.to(get_device_id())
        options = self.router_config
        self.router_optimizer.zero_grad()
        progress = schedule_progress(self.router_schedule.last_epoch, self.router_steps)
        logits = self.router_head.classify(data["router_features"])
        loss, metrics = router_loss(
            logits,
            data["router_action"],
            data["router_advantages"],
            labels=data["router_labels"],
            label_weight=options.label_weight,
            entropy_weight=entropy_weight(options, progress),
        )
        (loss + exploration_loss(options, logits, progress)).backward()
        group = self.actor.engine.get_data_parallel_group()
        ranks = torch.distributed.get_world_size(group)
        for parameter in self.router_head.parameters():
            torch.distributed.all_reduce(parameter.grad, group=group)
            parameter.grad /= ranks
        norm = torch.nn.utils.clip_grad_norm_(
            self.router_head.parameters(), options.optim.grad_clip
        )
        metrics["router/grad_norm"] = norm.item()
        metrics["router/lr"] = self.router_schedule.get_last_lr()[0]
        self.router_optimizer.step()
        self.router_schedule.step()
        return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_router(self, folder: str) -> None:
        """Write the head and its optimizer to a checkpoint; the first rank does.

        `rewardfleet_router.checkpoint.load_head` reads the head.
        """
        if self.rank == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            save_head(Path(folder), self.router_head)
            state = {
                "optimizer": self.router_optimizer.state_dict(),
                "schedule": self.router_schedule.state_dict(),
            }
            torch.save(state, Path(folder) / OPTIMIZER_FILE)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_router(self, folder: str) -> None:
        """Read what `save_router` wrote.

        Raises:
            FileNotFoundError: The checkpoint has no head.
        """
        device = get_device_id()
        self.router_head.load_state_dict(load_head(Path(folder), device).state_dict())
        state = torch.load(Path(folder) / OPTIMIZER_FILE, map_location=device, weights_only=True)
        self.router_optimizer.load_state_dict(state["optimizer"])
        self.router_schedule.load_state_dict(state["schedule"])

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def generate_tokens(
        self, prompts: list[list[int]], sampling: dict[str, Any]
    ) -> list[list[int]]:
        """Return the tokens that the actor generates for each prompt; for `rollout.name=hf`."""
        engine = self.actor.engine
        with engine.eval_mode():
            tokenizer = self.actor.model_config.tokenizer
            tokens: list[list[int]] = generate(engine.module, prompts, sampling, tokenizer)
        return tokens

    def _features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the pooled hidden states of the actor, [B, H], in micro-batches, no gradient."""
        size = self.config.rollout.log_prob_micro_batch_size_per_gpu or len(input_ids)
        parts = zip(input_ids.split(size), attention_mask.split(size), strict=True)
        device = get_device_id()
        with self.actor.engine.eval_mode(), torch.no_grad():
            return torch.cat([self._pooled(ids.to(device), mask.to(device)) for ids, mask in parts])

    def _pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = last_hidden_state(self.actor.engine.module, input_ids, attention_mask)
        return self.router_head.pool(hidden, attention_mask)
