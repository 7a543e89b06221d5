"""Assembly of the code service."""

import importlib

from rewardfleet.wire.code import CodeRequest, CodeScore
from rewardfleet_server.app import RewardApp, Service
from rewardfleet_server.app import create_app as create_reward_app

from .sandboxes import SANDBOXES, Sandbox
from .scorer import CodeScorer
from .settings import CodeSettings


def create_app(settings: CodeSettings, sandbox: Sandbox | None = None) -> RewardApp:
    """Put the code service together.

    Args:
        settings: What it was told.
        sandbox: Where programs run; by default the jail, probed and started here.

    Raises:
        ValueError: There is no safe way to run programs here.
    """
    name = "jail"
    if sandbox is None:
        module, _, attribute = SANDBOXES[name].partition(":")
        sandbox = getattr(importlib.import_module(module), attribute)(settings)
    assert sandbox is not None  # noqa: S101 - a sandbox's `build` returns one
    service = Service(
        name="code",
        about="A program and its tests go in, a verdict for each test comes out.",
        scorer=CodeScorer(name, sandbox, settings),
        request_type=CodeRequest,
        score_type=CodeScore,
        aclose=sandbox.aclose,
    )
    return create_reward_app(service, settings)
