"""CTRL (HKUNLP/critic-rl): rewards of critiques, its training files, and data to start from."""

from .critiques import CritiqueReport, execution_feedback, write_critiques
from .reward import CritiqueReward, RevisionQuery, RewardModelForCritic, build_revision_messages
from .rows import read_rows

__all__ = [
    "CritiqueReport",
    "CritiqueReward",
    "RevisionQuery",
    "RewardModelForCritic",
    "build_revision_messages",
    "execution_feedback",
    "read_rows",
    "write_critiques",
]
