"""Assembly of the code service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rewardfleet.wire.code import CodeRequest, CodeScore
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.http.trainers import TrainerApi
from rewardfleet_server.registry import SERVICES, load_attribute
from rewardfleet_server.settings import redact

from .datasets.ground_truth import request_of
from .metrics import SandboxMetrics
from .sandbox_fusion_api import SandboxFusionApi
from .sandboxes import SANDBOXES, Sandbox
from .sandboxes.jail.isolation import FALLBACK_ORDER
from .scorer import CodeScorer
from .settings import MAX_OUTPUT_KB, CodeSettings


def create_app(settings: CodeSettings, sandbox: Sandbox | None = None) -> RewardApp:
    """Assemble the code service.

    Args:
        settings: The settings of the service.
        sandbox: Where programs run. None: start the one that the settings name.

    Raises:
        ValueError: The sandbox cannot be started, e.g. without isolation on this machine.
    """
    if sandbox is None:
        sandbox = load_attribute(SANDBOXES[settings.sandbox])(settings)
    assert sandbox is not None  # noqa: S101 - a sandbox's `build` returns one
    return RewardApp(code_service(settings, sandbox), settings)


def code_service(settings: CodeSettings, sandbox: Sandbox) -> Service[CodeRequest, CodeScore]:
    """Return the parts of the code service that the server needs."""
    scorer = CodeScorer(settings.sandbox, sandbox, settings)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            yield
        finally:
            scorer.close()
            await sandbox.aclose()

    return Service(
        name="code",
        description=SERVICES["code"].description,
        scorer=scorer,
        request_type=CodeRequest,
        score_type=CodeScore,
        lifespan=lifespan,
        routes=lambda engine: [
            *SandboxFusionApi(engine, scorer, sandbox, settings).routes(),
            *TrainerApi(engine, CodeRequest, request_of).routes(),
        ],
        field_schemas=_ceilings(settings),
        collectors=(
            SandboxMetrics(sandbox, _requested_isolation(settings), scorer.verdict_counts),
        ),
        overview=_overview(settings, sandbox),
    )


def _ceilings(settings: CodeSettings) -> dict[str, dict[str, float]]:
    """Return the largest values of a request's limits, by field."""
    return {
        "cpu_s": {"maximum": settings.max_cpu_s},
        "wall_s": {"maximum": settings.max_wall_s},
        "memory_mb": {"maximum": settings.max_memory_mb},
        "output_kb": {"maximum": MAX_OUTPUT_KB},
        "run_timeout": {"maximum": settings.max_cpu_s},
        "memory_limit_MB": {"maximum": settings.max_memory_mb},
    }


def _requested_isolation(settings: CodeSettings) -> str:
    """Return the level that programs should have: `auto` means the best one."""
    if settings.sandbox == "fusion":
        return "fusion"
    return FALLBACK_ORDER[0] if settings.isolation == "auto" else settings.isolation


def _overview(settings: CodeSettings, sandbox: Sandbox) -> dict[str, str]:
    if settings.sandbox == "fusion":
        return {
            "sandbox": f"fusion at {redact(str(settings.fusion_url))}",
            "concurrency": str(settings.workers),
        }
    return {
        "sandbox": f"jail, isolation {sandbox.provenance['isolation']}",
        "workers": str(settings.workers),
    }
