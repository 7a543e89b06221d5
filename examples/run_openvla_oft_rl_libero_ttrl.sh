#!/usr/bin/env bash
# Test-time RL of OpenVLA-OFT on LIBERO with SimpleVLA-RL, from whose checkout this is run. The lines
# to change in that checkout are in docs/trainers/simplevla-rl.md.
#
#   SFT_MODEL_PATH=… CKPT_PATH=… SUITE=libero_spatial GPUS=8 bash run_openvla_oft_rl_libero_ttrl.sh
#
# Arguments are further overrides.
set -euo pipefail
: "${SFT_MODEL_PATH:?the checkpoint to start from}" "${CKPT_PATH:?where to write checkpoints}"
SUITE="${SUITE:-libero_10}"  # libero_10, libero_90, libero_spatial, libero_object or libero_goal
GPUS="${GPUS:-8}"

export ROBOT_PLATFORM=LIBERO TOKENIZERS_PARALLELISM=true HYDRA_FULL_ERROR=1
bash examples/overwrite_vla_ckpt_utils.sh "$SFT_MODEL_PATH"  # the checkpoint's code, as in the checkout

# Four samples of a prompt at 0.6, 0.7, 0.8, 0.9; log-probabilities are computed at the middle.
# All of them train: the bounds on accuracy keep every group. (The trainer needs the filter: without
# it, it fails with an unbound variable.) The reward divides steps by 500, as in the original.
python -u -m verl.trainer.main_ppo \
    data.task_suite_name="$SUITE" \
    data.num_trials_per_task=50 \
    data.n_samples=4 \
    data.filter_accuracy=True \
    data.accuracy_lower_bound=0.0 \
    data.accuracy_upper_bound=1.0 \
    data.train_batch_size=64 \
    data.val_batch_size=496 \
    data.max_prompt_length=256 \
    data.max_response_length=128 \
    actor_rollout_ref.model.path="$SFT_MODEL_PATH" \
    actor_rollout_ref.model.vla=openvla-oft \
    actor_rollout_ref.model.action_token_len=7 \
    actor_rollout_ref.model.action_chunks_len=8 \
    actor_rollout_ref.actor.optim.lr=5e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size="$GPUS" \
    actor_rollout_ref.actor.fsdp_config.grad_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.grad_clip=1 \
    actor_rollout_ref.actor.entropy_coeff=0. \
    actor_rollout_ref.rollout.name=hf \
    actor_rollout_ref.rollout.temperature=0.75 \
    actor_rollout_ref.rollout.pretrained_checkpoint="$SFT_MODEL_PATH" \
    actor_rollout_ref.rollout.task_suite_name="$SUITE" \
    actor_rollout_ref.rollout.unnorm_key="$SUITE" \
    actor_rollout_ref.rollout.experiment_name="ttrl-$SUITE" \
    actor_rollout_ref.rollout.log_prob_micro_batch_size=32 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.ref.log_prob_micro_batch_size=32 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    algorithm.adv_estimator=grpo \
    algorithm.kl_ctrl.kl_coef=0. \
    verifier.reward_coef=5 \
    +test_time_rl=True \
    +base_temperature=0.6 \
    +temperature_range=0.3 \
    trainer.runtime_env="$PWD/align.json" \
    trainer.logger=[console] \
    trainer.project_name=SimpleVLA-RL \
    trainer.experiment_name="ttrl-$SUITE" \
    trainer.default_local_dir="$CKPT_PATH/ttrl-$SUITE" \
    trainer.n_gpus_per_node="$GPUS" \
    trainer.save_freq=25 \
    trainer.test_freq=4 \
    trainer.total_epochs=100 \
    trainer.val_only=False \
    "$@"
