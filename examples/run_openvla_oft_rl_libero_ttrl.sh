#!/usr/bin/env bash
# Test-time RL of OpenVLA-OFT on LIBERO with SimpleVLA-RL, whose checkout this is run from.
# main_ppo.py takes its reward manager from rewardfleet.adapters.simplevla; see docs/episodes.md.
set -euo pipefail
: "${SFT_MODEL_PATH:?the checkpoint to start from}" "${CKPT_PATH:?where to write checkpoints}"

# Four samples of a prompt at 0.6, 0.7, 0.8, 0.9. All of them train: no filter on accuracy.
python -m verl.trainer.main_ppo \
    data.task_suite_name="${SUITE:-libero_10}" \
    data.n_samples=4 \
    data.filter_accuracy=False \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path="$SFT_MODEL_PATH" \
    actor_rollout_ref.model.vla=openvla-oft \
    actor_rollout_ref.model.action_token_len=7 \
    actor_rollout_ref.model.action_chunks_len=8 \
    +actor_rollout_ref.model.max_steps=512 \
    actor_rollout_ref.rollout.temperature=0.6 \
    algorithm.adv_estimator=grpo \
    verifier.reward_coef=5 \
    +test_time_rl=True \
    +base_temperature=0.6 \
    +temperature_range=0.3 \
    trainer.default_local_dir="$CKPT_PATH" \
    trainer.n_gpus_per_node="${GPUS:-8}" \
    "$@"
