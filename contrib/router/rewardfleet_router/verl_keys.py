"""Keys of verl that a training loop lacks: which values have no effect on it, and what to do else.

A command of the router's authors, or of verl 0.4 to 0.9, then works as it is, or its error says
what to change.
"""

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rewardfleet.wire.errors import InvalidRequest

log = logging.getLogger(__name__)


class Rule(NamedTuple):
    """What a loop makes of some of verl's keys.

    Attributes:
        keys: Their patterns, separated by spaces.
        harmless: Values that have no effect on the loop. Null never has one.
        instead: What to do for other values. Empty: no value has an effect.
    """

    keys: str
    harmless: tuple[Any, ...] = ()
    instead: str = ""


_WITH_VERL = "train with verl: python -m rewardfleet_router.verl"
_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"

#: Of `rewardfleet-router train`. The first pattern that fits counts.
OWN_LOOP = (
    # It has no reference policy, no critic, and no loss over the actor's tokens.
    Rule(
        f"{_ACTOR}.use_kl_loss algorithm.use_kl_in_reward trainer.use_reference_policy",
        (False,),
        f"{_WITH_VERL} {_ACTOR}.use_kl_loss=true",
    ),
    Rule("trainer.critic_warmup", (0,), "leave it out; there is no critic"),
    Rule(f"{_ACTOR}.ppo_epochs", (1,), _WITH_VERL),
    Rule(f"{_ACTOR}.entropy_coeff", (0,), f"set router.entropy_coeff, or {_WITH_VERL}"),
    Rule(
        "algorithm.norm_adv_by_std_in_grpo",
        (),
        "set router.advantage, to std for true, to mean for false",
    ),
    Rule("algorithm.use_pf_ppo algorithm.filter_groups.enable", (False,), _WITH_VERL),
    Rule(
        f"{_ACTOR}.optim.lr_warmup_steps {_ACTOR}.optim.lr_warmup_steps_ratio",
        (0, -1),
        f"set {_ACTOR}.optim.warmup_steps",
    ),
    Rule(
        f"{_ACTOR}.optim.lr_scheduler_type {_ACTOR}.optim.warmup_style",
        ("constant",),
        f"set {_ACTOR}.optim.schedule",
    ),
    Rule(f"{_ACTOR}.optim.min_lr_ratio", (0,), f"{_ACTOR}.optim.schedule falls to 0"),
    Rule(f"{_ACTOR}.grad_clip {_ACTOR}.optim.clip_grad", (1.0,), f"set {_ACTOR}.optim.grad_clip"),
    Rule(
        f"{_ACTOR}.optim.optimizer {_ACTOR}.optim.optimizer_impl {_ACTOR}.*override_optimizer*",
        ("AdamW", "torch.optim"),
        _WITH_VERL,
    ),
    Rule("actor_rollout_ref.*.qat.enable", (False,), _WITH_VERL),
    # transformers generates.
    Rule(f"{_ROLLOUT}.do_sample {_ROLLOUT}.val_kwargs.do_sample", (True,), "answers are sampled"),
    Rule(f"{_ROLLOUT}.top_k {_ROLLOUT}.val_kwargs.top_k", (-1, 0), _WITH_VERL),
    Rule(f"{_ROLLOUT}.top_p {_ROLLOUT}.val_kwargs.top_p", (1,), _WITH_VERL),
    Rule(
        f"{_ROLLOUT}.val_kwargs.temperature {_ROLLOUT}.val_kwargs.n",
        (1,),
        f"an evaluation samples one answer, with {_ROLLOUT}.temperature",
    ),
    Rule(
        f"{_ROLLOUT}.ignore_eos {_ROLLOUT}.multi_turn.enable {_ROLLOUT}.use_fire_sampling "
        f"{_ROLLOUT}.enable_rollout_routing_replay {_ROLLOUT}.skip_rollout *skip*.enable "
        f"{_ROLLOUT}.disaggregation.enabled",
        (False,),
        _WITH_VERL,
    ),
    Rule(f"{_ROLLOUT}.quantization* {_ROLLOUT}.multi_turn.*_path", (), _WITH_VERL),
    Rule(f"{_ROLLOUT}.prompt_length", (), "set data.max_prompt_length"),
    Rule(f"{_ROLLOUT}.response_length", (), "set data.max_response_length"),
    # The model is that in the folder.
    Rule(f"{_MODEL}.lora_rank {_MODEL}.lora.rank", (0,), _WITH_VERL),
    Rule(f"{_MODEL}.trust_remote_code data.trust_remote_code", (False,), _WITH_VERL),
    Rule(
        f"{_MODEL}.override_config* {_MODEL}.external_lib {_MODEL}.custom_chat_template "
        f"{_MODEL}.tokenizer_path {_MODEL}.hf_config_path {_MODEL}.lora_adapter_path "
        "data.tokenizer data.apply_chat_template_kwargs*",
        ({},),
        f"change the files in {_MODEL}.path, or {_WITH_VERL}",
    ),
    # The tools service scores.
    Rule("reward_model.enable reward.reward_model.enable", (False,), _WITH_VERL),
    Rule(
        "*custom_reward_function.path *sandbox_fusion.url *reward_loop_*_path "
        "*reward_manager.module.path",
        (),
        _WITH_VERL,
    ),
    Rule("*reward_manager *reward_manager.name", ("naive",), _WITH_VERL),
    # Rows.
    Rule("data.prompt_key", ("prompt",), "name the column `prompt`"),
    Rule(
        "data.filter_overlong_prompts",
        (False,),
        "remove these rows from the file, or set data.truncation",
    ),
    Rule("data.train_max_samples data.val_max_samples", (-1,), "give a file with fewer rows"),
    Rule("data.gen_batch_size", (), "set data.train_batch_size"),
    Rule("data.*.path data.*.class_path data.*_tool_path data.tool_config_path", (), _WITH_VERL),
    # The run.
    Rule("trainer.val_before_train trainer.val_only", (False,), "set trainer.test_freq"),
    Rule("trainer.log_val_generations", (0,), _WITH_VERL),
    Rule(
        "trainer.rollout_data_dir trainer.validation_data_dir trainer.default_hdfs_dir "
        "trainer.checkpoint_callback_class",
        (),
        _WITH_VERL,
    ),
    Rule("trainer.resume_from_path", (), "set trainer.default_local_dir to the run's folder"),
    Rule(
        "trainer.remove_previous_ckpt*",
        (False,),
        "set trainer.max_actor_ckpt_to_keep=1",
    ),
    Rule(f"{_ACTOR}.ppo_micro_batch_size {_ROLLOUT}.pipeline_model_parallel_size"),
    # What is left of these sections changes memory, speed, processes or logs, or is of what the
    # rules above exclude.
    Rule(
        "actor_rollout_ref.actor.* actor_rollout_ref.rollout.* actor_rollout_ref.model.* "
        "actor_rollout_ref.ref.* actor_rollout_ref.profiler.* actor_rollout_ref.hybrid_engine "
        "actor_rollout_ref.nccl_timeout"
    ),
    Rule("algorithm.gamma algorithm.lam algorithm.kl_* algorithm.pf_ppo.* algorithm.rollout_*"),
    Rule("algorithm.filter_groups.*"),
    Rule("critic.* reward_model.* reward.* reward_manager.* custom_reward_function.*"),
    Rule("sandbox_fusion.* distillation.* skip.* transfer_queue.* global_profiler.*"),
    Rule("ray_kwargs.* ray_init.* model_engine"),
    Rule("data.return_* data.reward_fn_key data.image_* data.video_key data.audio_key"),
    Rule("data.*_workers data.use_shm data.validation_shuffle data.mm_processor_kwargs*"),
    Rule("data.custom_cls.* data.sampler.* data.datagen.*"),
    Rule("trainer.balance_batch trainer.profile_steps trainer.npu_profile.* trainer.*_nsight_*"),
    Rule("trainer.ray_wait_* trainer.esi_redundant_time trainer.use_legacy_worker_impl"),
    Rule("trainer.use_v1 trainer.v1.* trainer.del_local_ckpt* trainer.max_critic_ckpt_to_keep"),
    # The published code decodes with these; the tools service reads answers with either.
    Rule("router.tokenizer_decode_kwargs.*"),
)

#: Of verl 0.9, which lacks keys of its older releases.
OLDER_VERL = (
    Rule(
        "trainer.use_reference_policy",
        (False,),
        f"set {_ACTOR}.use_kl_loss=true, or algorithm.use_kl_in_reward=true",
    ),
    # Gradients are where the parameters are.
    Rule("*.fsdp_config.grad_offload"),
    Rule("ray_init.num_cpus", (), "set ray_kwargs.ray_init.num_cpus"),
    Rule("ray_init.timeline_json_file", (), "set ray_kwargs.timeline_json_file"),
    Rule("trainer.profile_steps", (), "set global_profiler.steps"),
    Rule("trainer.*_nsight_options.* trainer.npu_profile.* *.profiler.discrete"),
    Rule("actor_rollout_ref.profiler.* reward_model.profiler.*"),
    Rule("*.profiler.tool_config.torch.step_start *.profiler.tool_config.torch.step_end"),
    Rule("trainer.use_legacy_worker_impl *.checkpoint.mbridge_config"),
    Rule(f"{_ACTOR}.sum_pi_squared_checkpointing {_ROLLOUT}.update_weights_bucket_megabytes"),
    Rule(f"{_ROLLOUT}.use_fire_sampling", (False,), "leave it out; verl 0.9 has no FIRE sampling"),
    Rule(f"{_ROLLOUT}.skip_rollout {_ROLLOUT}.skip.enable", (False,), "set skip.rollout.enable"),
    Rule(f"{_ROLLOUT}.skip_dump_dir {_ROLLOUT}.skip.*"),
    Rule(
        f"{_ROLLOUT}.multi_turn.interaction_config_path {_ROLLOUT}.multi_turn.completion_callback",
        (),
        f"set {_ROLLOUT}.agent.agent_loop_config_path",
    ),
    Rule("*.router_replay.mode", ("disabled",), "leave it out; verl 0.9 has no replay of experts"),
    Rule("*.router_replay.*"),
    Rule("data.sampler.class_path data.datagen.path", (), "sort the rows of data.train_files"),
    Rule("data.sampler.class_name data.datagen.name actor_rollout_ref.ref.model"),
    Rule("algorithm.rollout_correction.use_policy_gradient", (False,), "leave it out"),
    Rule(
        "algorithm.rollout_correction.rollout_rs_threshold_lower "
        "algorithm.rollout_correction.rollout_token_veto_threshold",
        (),
        "set algorithm.rollout_correction.rollout_rs_threshold",
    ),
    Rule("reward_manager.module.path", (), "set reward.reward_manager.module.path"),
    Rule("reward_manager.name", ("naive",), "set reward.reward_manager.name"),
    Rule("reward_manager.*"),
    Rule("reward_model.sandbox_fusion.url", (), "set sandbox_fusion.url"),
    Rule("reward_model.use_reward_loop reward_model.launch_reward_fn_async"),
    Rule("reward_model.sandbox_fusion.* reward_model.strategy reward_model.max_length"),
    Rule("reward_model.model.input_tokenizer reward_model.model.use_* reward_model.use_*"),
    Rule("reward_model.model.fsdp_config.* reward_model.model.override_config*"),
    Rule("reward_model.forward_* reward_model.micro_* reward_model.ulysses_sequence_parallel_size"),
    Rule("critic.model.fsdp_config.*"),  # memory; `critic.fsdp` sets it
    Rule("router.tokenizer_decode_kwargs.*"),
)

#: Keys of the router that the authors' own trainer calls otherwise.
RENAMED = {"router.lagrange_lr": "router.eta", "router.init_lambda": "router.initial_lambda"}


def without_effect(
    settings: Mapping[str, Any], rules: Iterable[Rule], known: Collection[str] = ()
) -> set[str]:
    """Return the keys that have no effect on a loop, and name them in the log.

    Args:
        settings: Values by key, of which some are of verl.
        rules: Those of the loop.
        known: Keys of the loop. What looks like one of them, misspelled, is not taken as one of a
            whole section of verl's.

    Raises:
        InvalidRequest: A value has an effect in verl that the loop lacks.
    """
    patterns = [(pattern, rule) for rule in rules for pattern in rule.keys.split()]
    ignored = []
    for key, value in settings.items():
        pattern, rule = next((p for p in patterns if fnmatchcase(key, p[0])), ("", None))
        if rule is None or (pattern.endswith("*") and _is_misspelled(key, known)):
            continue
        if rule.instead and value is not None and value not in rule.harmless:
            raise InvalidRequest(f"{key}={value} has no counterpart here: {rule.instead}")
        ignored.append(key)
    if ignored:
        log.warning("these keys of verl have no effect here: %s", ", ".join(ignored))
    return set(ignored)


def _is_misspelled(key: str, known: Collection[str]) -> bool:
    """Return whether the first part of a key that is not known there is almost one that is."""
    branches = [each.split(".") for each in known]
    for depth, part in enumerate(key.split(".")):
        names = {each[depth] for each in branches if len(each) > depth}
        if part not in names:
            return bool(difflib.get_close_matches(part, names, 1, 0.8))
        branches = [each for each in branches if len(each) > depth and each[depth] == part]
    return False
