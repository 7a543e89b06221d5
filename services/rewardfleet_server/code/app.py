"""Assembly of the code service."""

import importlib

from rewardfleet.wire.code import CodeRequest, CodeScore
from rewardfleet_server.app import RewardApp, Service
from rewardfleet_server.app import create_app as create_reward_app

from .facade import endpoints
from .sandboxes import SANDBOXES, Sandbox
from .scorer import CodeScorer
from .settings import CodeSettings


def create_app(settings: CodeSettings, sandbox: Sandbox | None = None) -> RewardApp:
    """Put the code service together.

    Args:
        settings: What it was told.
        sandbox: Where programs run; by default the one that the settings name, started here.

    Raises:
        ValueError: There is no safe way to run programs here.
    """
    if sandbox is None:
        module, _, attribute = SANDBOXES[settings.sandbox].partition(":")
        sandbox = getattr(importlib.import_module(module), attribute)(settings)
    assert sandbox is not None  # noqa: S101 - a sandbox's `build` returns one
    scorer = CodeScorer(settings.sandbox, sandbox, settings)
    service = Service(
        name="code",
        about="A program and its tests go in, a verdict for each test comes out.",
        scorer=scorer,
        request_type=CodeRequest,
        score_type=CodeScore,
        aclose=sandbox.aclose,
        endpoints=endpoints(scorer, sandbox, settings),
    )
    return create_reward_app(service, settings)
