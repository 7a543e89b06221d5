"""The command `python -m rewardfleet_router.verl`: verl's trainer, with a router.

It takes the arguments of `python -m verl.trainer.main_ppo`, also of older releases, and in addition
`router.*` and `trainer.save_on_exit`.
"""

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import Field

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_router.config import Router, Section, keys, parse_as, read_settings
from rewardfleet_router.verl_keys import OLDER_VERL, without_effect

from .settings import choose_cpu, tensorboard_folder

#: What differs from verl's defaults. Arguments override them.
_DEFAULTS = (
    "trainer.use_v1=false",  # the trainer with `fit`
    "trainer.logger=[console,tensorboard]",
    "trainer.default_local_dir=runs/${trainer.project_name}/${trainer.experiment_name}",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
)
#: In addition, on CPUs.
_CPU_DEFAULTS = (
    "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32}",
    "reward.num_workers=1",
    "data.dataloader_num_workers=0",
)


#: Sizes that newer releases have as `…_per_gpu`.
_MICRO_BATCHES = {
    "ppo_micro_batch_size",
    "log_prob_micro_batch_size",
    "forward_micro_batch_size",
}


class _Trainer(Section):
    save_on_exit: bool = Field(
        True, description="On SIGINT and SIGTERM, a checkpoint after the step in progress."
    )


class Options(Section):
    """The keys that verl's configuration lacks."""

    router: Router = Router()
    trainer: _Trainer = _Trainer()


def compose(arguments: Sequence[str]) -> Any:
    """Return verl's configuration, with `router` and `trainer.save_on_exit`.

    Args:
        arguments: `key=value`, as verl takes them.

    Raises:
        InvalidRequest: A key of `router` is unknown, or a value of it is not valid; or a key of an
            older verl has an effect that verl lacks.
        hydra.errors.HydraException: A key of verl is unknown.
    """
    own = [each for each in arguments if _is_own(each)]
    options = parse_as(Options, own, OLDER_VERL)
    if options.router.responder != "actor":
        raise InvalidRequest("router.responder: in verl, the actor answers")
    on_cpu = "trainer.device=cpu" in arguments
    if on_cpu:
        choose_cpu()
    # verl reads the variables above when it is imported.
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf, open_dict

    of_verl = [each for each in arguments if each not in own]
    settings = read_settings(each for each in of_verl if not each.startswith("~"))
    ignored = without_effect(settings, OLDER_VERL)
    of_verl = [each for each in of_verl if _key(each) not in ignored]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose(
            "ppo_trainer", [*_DEFAULTS, *(_CPU_DEFAULTS if on_cpu else ()), *of_verl]
        )
    router = options.router
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    migrate_legacy_reward_impl(config)  # `custom_reward_function` becomes `reward.…`
    with open_dict(config):
        _divide_micro_batches(config)
        config.router = OmegaConf.create(router.model_dump(mode="json"))
        config.actor_rollout_ref.router = config.router
        config.trainer.save_on_exit = options.trainer.save_on_exit
        reward = config.reward.custom_reward_function
        if reward.path is None:
            reward.path = f"pkg://{__package__}.reward"
            reward.name = "compute_score"
            tools = router.model_dump(mode="json", include={"variant", "cost", "cost_weights"})
            reward.reward_kwargs = {
                "url": router.url,
                "timeout_s": router.timeout_s,
                "options": tools,
            }
        # For processes of Ray that do not inherit this one's.
        default = Path(config.trainer.default_local_dir, "tensorboard")
        environment = {"TENSORBOARD_DIR": str(tensorboard_folder(default))}
        if on_cpu:
            choose_cpu(environment)
        runtime = config.ray_kwargs.ray_init.setdefault("runtime_env", {})
        runtime.env_vars = {**environment, **runtime.get("env_vars", {})}
    return config


def _divide_micro_batches(config: Any) -> None:
    """Set the sizes per process that older releases take for all processes together."""
    processes = config.trainer.n_gpus_per_node * config.trainer.nnodes
    actor = config.actor_rollout_ref
    for section in (actor.actor, actor.rollout, actor.ref, config.critic):
        for name in _MICRO_BATCHES & section.keys():
            if (size := section[name]) is not None:
                section[f"{name}_per_gpu"] = max(1, size // processes)
                section[name] = None


def _is_own(argument: str) -> bool:
    """Return whether an argument sets one of `Options`."""
    return _key(argument).startswith("router.") or _key(argument) in set(keys(Options))


def _key(argument: str) -> str:
    return argument.lstrip("+").partition("=")[0]


def train(config: Any) -> None:
    """Train on Ray, which is started where there is none; return when the run ends."""
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    run_ppo(config, task_runner_class=_StoppableRunner)


class _StoppableRunner:
    """Creates the process of the loop, and passes it SIGINT and SIGTERM."""

    @staticmethod
    def remote() -> Any:
        import ray

        from .trainer import RouterTaskRunner

        # Two threads: one trains, the other receives `stop`.
        runner = ray.remote(RouterTaskRunner).options(max_concurrency=2, num_cpus=0).remote()
        stops = threading.Event()

        def wait() -> None:
            stops.wait()
            runner.stop.remote()

        threading.Thread(target=wait, daemon=True).start()

        def on_signal(_signal: int, _frame: FrameType | None) -> None:
            if stops.is_set():
                raise KeyboardInterrupt
            print("stopping after the step in progress; again to stop at once", file=sys.stderr)
            stops.set()

        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, on_signal)
        return runner


def main() -> None:
    """Train with the arguments of the command line."""
    from hydra.errors import HydraException

    try:
        config = compose(sys.argv[1:])
    except (HydraException, InvalidRequest) as error:
        sys.exit(str(error))
    train(config)


if __name__ == "__main__":
    main()
