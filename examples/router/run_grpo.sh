#!/usr/bin/env bash
# GRPO of the actor together with the router, in verl with vLLM; train_grpo.sh starts it.
# The last block is what a router adds to a run of verl. Further arguments override all.
set -euo pipefail
: "${DATA_DIR:?}" "${BASE_MODEL:?}" "${EXPERIMENT_NAME:?}"
gpus="${GPUS:-1}"

exec "${PYTHON:-python3}" -m rewardfleet_router.verl \
    algorithm.adv_estimator=grpo \
    data.train_files="$DATA_DIR/train_router.parquet" \
    data.val_files="$DATA_DIR/test_router.parquet" \
    data.train_batch_size=512 \
    data.val_batch_size=128 \
    data.max_prompt_length=2048 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path="$BASE_MODEL" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.n=4 \
    trainer.save_freq=15 \
    trainer.test_freq=10 \
    trainer.project_name=GRPO \
    trainer.experiment_name="$EXPERIMENT_NAME" \
    trainer.n_gpus_per_node="$gpus" \
    trainer.nnodes=1 \
    trainer.total_epochs=15 \
    router.enable=true \
    router.budget_B="${BUDGET:-0.3}" \
    router.cost_weights.any_tool=1.0 \
    router.url="${TOOLS_URL:-http://127.0.0.1:18083}" \
    trainer.save_on_exit=true \
    "$@"
