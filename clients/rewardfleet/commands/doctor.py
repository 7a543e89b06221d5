"""`rewardfleet doctor`: what works on this machine, and how to fix the rest."""

import click

from .options import load_attribute


@click.command(name="doctor", help="Report what works on this machine, and how to fix the rest.")
def command() -> int:
    """Print what works; return 1 if a service cannot run."""
    return int(load_attribute("rewardfleet_server.commands.doctor:run_doctor")())
