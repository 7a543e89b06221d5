"""`rewardfleet load`: what a fleet does at a given rate."""

from .command import command as command
