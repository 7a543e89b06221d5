"""CTRL (HKUNLP/critic-rl): rewards of critiques, and its training files."""

from .reward import CritiqueReward, RevisionQuery, RewardModelForCritic, build_revision_messages
from .rows import read_rows

__all__ = [
    "CritiqueReward",
    "RevisionQuery",
    "RewardModelForCritic",
    "build_revision_messages",
    "read_rows",
]
