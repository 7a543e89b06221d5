"""`rewardfleet gateway`: one address for services that run elsewhere."""

from rewardfleet_server.up.command import command

__all__ = ["command"]
