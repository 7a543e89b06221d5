"""CTRL (HKUNLP/critic-rl): rewards of critiques, its training files, and data to start from."""

from .critiques import CritiqueReport, execution_feedback, write_critiques
from .reward import (
    REVISION_SAMPLING,
    CritiqueReward,
    RevisionQuery,
    RevisionSampling,
    RewardModelForCritic,
    build_revision_messages,
    scatter_rewards,
)
from .rows import read_rows

__all__ = [
    "REVISION_SAMPLING",
    "CritiqueReport",
    "CritiqueReward",
    "RevisionQuery",
    "RevisionSampling",
    "RewardModelForCritic",
    "build_revision_messages",
    "execution_feedback",
    "read_rows",
    "scatter_rewards",
    "write_critiques",
]
