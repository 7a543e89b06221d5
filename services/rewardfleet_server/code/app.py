"""Assembly of the code service."""

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rewardfleet.lazy import Lazy
from rewardfleet.wire.code import CodeRequest, CodeScore
from rewardfleet.wire.urls import redact
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.http.trainers import TrainerApi

from .datasets.ground_truth import request_of
from .sandbox_fusion_api import SandboxFusionApi
from .sandboxes import SANDBOXES, Sandbox
from .sandboxes.jail.guest import MAX_INTEGER_DIGITS
from .scorer import CodeScorer
from .settings import CodeSettings

#: Counters of the service, and what they count.
_COUNTERS = {
    "jail_restarts": "Jails started again because one died or could not be cleaned.",
    "missing_modules": "Programs that failed a test because they import a module that is not "
    "installed.",
    "program_decisions": "Tests that passed, and that the program could have decided: verdicts by "
    "`jail`.",
    "alike_outputs": "Programs that were run on tests whose expected outputs are all empty, or the "
    "same.",
    "program_kills": "Runs that SIGKILL ended, e.g. for lack of memory. They are repeated once.",
    "memory_waits": "Submissions that waited for the memory of others.",
}


def create_app(settings: CodeSettings, sandbox: Sandbox | None = None) -> RewardApp:
    """Assemble the code service.

    Args:
        sandbox: Where programs run. None: start the one that the settings name.

    Raises:
        ValueError: The sandbox cannot be started, e.g. without isolation on this machine.
    """
    used: Sandbox = sandbox or Lazy(SANDBOXES[settings.sandbox])(settings)
    sys.set_int_max_str_digits(MAX_INTEGER_DIGITS)  # of tests, and of what programs return
    scorer = CodeScorer(settings.sandbox, used, settings)
    ceilings = {name: {"maximum": value} for name, value in scorer.ceilings.items()}
    ceilings |= {"run_timeout": ceilings["cpu_s"], "memory_limit_MB": ceilings["memory_mb"]}

    workers = str(settings.workers)
    overview = {"sandbox": f"jail, isolation {scorer.isolation}", "workers": workers}
    if settings.sandbox == "fusion":
        where = redact(str(settings.fusion_url))
        overview = {"sandbox": f"fusion at {where}", "concurrency": workers}

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            yield
        finally:
            scorer.close()
            await used.aclose()

    service = Service(
        name="code",
        scorer=scorer,
        request_type=CodeRequest,
        score_type=CodeScore,
        lifespan=lifespan,
        routes=lambda engine: [
            *SandboxFusionApi(engine, scorer, used, settings).routes(),
            *TrainerApi(engine, CodeRequest, request_of).routes(),
        ],
        field_schemas=ceilings,
        collectors=(_Metrics(scorer, used, settings),),
        probe=scorer.probe,
        ready_fields=lambda: {"isolation": scorer.isolation},
        overview=overview,
    )
    return RewardApp(service, settings)


@dataclass(eq=False)
class _Metrics(Collector):
    scorer: CodeScorer
    sandbox: Sandbox
    settings: CodeSettings

    def collect(self) -> Iterable[Metric]:
        is_fusion = self.settings.sandbox == "fusion"
        requested = "fusion" if is_fusion else self.settings.isolation_levels[0]
        isolation = GaugeMetricFamily(
            "rewardfleet_isolation",
            "1 for the isolation level of programs. --isolation auto requests bubblewrap.",
            labels=("level", "requested"),
        )
        isolation.add_metric((self.scorer.isolation, requested), 1)
        yield isolation
        counts = {**self.sandbox.counts, **self.scorer.counts}
        for name, description in _COUNTERS.items():
            yield CounterMetricFamily(f"rewardfleet_{name}", description, counts.get(name, 0))
        text = "Programs that failed a test because of what the jail refuses."
        refused = CounterMetricFamily("rewardfleet_refused_by_jail", text, labels=("package",))
        for package, count in self.scorer.refused_by_jail.items():
            refused.add_metric((package,), count)
        yield refused
