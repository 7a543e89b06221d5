#!/usr/bin/env bash
# Train a router with verl, or with LOOP=own with the loop of this package; see docs/router.md.
# Further arguments override those below.
set -euo pipefail
: "${DATA_DIR:?the folder with train_router.parquet and test_router.parquet}"
: "${BASE_MODEL:?the actor, a causal language model}"

case "${LOOP:-verl}" in
verl) program=(-m rewardfleet_router.verl) ;;
own) program=(-m rewardfleet_router train) ;;
*) echo "LOOP: verl or own" >&2; exit 2 ;;
esac

exec "${PYTHON:-python3}" "${program[@]}" \
    algorithm.adv_estimator=grpo \
    data.train_files="$DATA_DIR/train_router.parquet" \
    data.val_files="$DATA_DIR/test_router.parquet" \
    data.train_batch_size=512 \
    data.val_batch_size=128 \
    data.max_prompt_length=2048 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path="$BASE_MODEL" \
    actor_rollout_ref.rollout.name="${ROLLOUT:-hf}" \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.n="${COPIES:-4}" \
    router.enable=true \
    router.budget_B="${BUDGET:-0.3}" \
    router.cost_weights.any_tool=1.0 \
    router.url="${TOOLS_URL:-http://127.0.0.1:18083}" \
    trainer.save_freq=200 \
    trainer.save_on_exit=true \
    trainer.project_name="${PROJECT_NAME:-router_grpo}" \
    trainer.experiment_name="${EXPERIMENT_NAME:-baseline_router}" \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.total_epochs=15 \
    "$@"
