#!/usr/bin/env bash
# ToolRL's wrapper: set what changes from run to run here, or in the environment.
set -euo pipefail
export DATA_DIR="${DATA_DIR:-./dataset/rlla_4k}"
export BASE_MODEL="${BASE_MODEL:?the actor, a causal language model}"
export EXPERIMENT_NAME="${EXPERIMENT_NAME:-grpo-router}"
exec bash "$(dirname "$0")/run_grpo.sh" "$@"
