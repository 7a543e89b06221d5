"""Assembly of the answers service."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import JsonValue

from rewardfleet.wire.answers import AnswersRequest, AnswersScore, fields_of_truth
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.validation import validate
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.http.trainers import TrainerApi

from .pool import Workers
from .scorer import AnswersScorer
from .settings import AnswersSettings


def create_app(settings: AnswersSettings) -> RewardApp:
    """Assemble the answers service; raise ValueError if a library is not installed."""
    require("server", "the answers service", "math_verify", "pint", "jsonschema", "pyseccomp")
    memory = settings.max_memory_mb * 2**20
    workers = Workers(settings.workers, settings.max_cpu_s, memory)
    scorer = AnswersScorer(workers, settings)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await workers.start()
        try:
            yield
        finally:
            await workers.aclose()

    service = Service(
        name="answers",
        scorer=scorer,
        request_type=AnswersRequest,
        score_type=AnswersScore,
        lifespan=lifespan,
        routes=lambda engine: TrainerApi(engine, AnswersRequest, request_of).routes(),
        collectors=(_Metrics(scorer, workers),),
        probe=scorer.probe,
        overview={"workers": str(settings.workers), "accept": settings.accept},
    )
    return RewardApp(service, settings)


def request_of(response: Any, truth: JsonValue) -> AnswersRequest:
    """Return the item of a response and its ground truth; raise InvalidRequest for a bad field."""
    fields = {**fields_of_truth(truth), "response": text_of(response)}
    return validate(AnswersRequest, fields, prefix="ground_truth: ")


@dataclass(eq=False)
class _Metrics(Collector):
    scorer: AnswersScorer
    workers: Workers

    def collect(self) -> Iterable[Metric]:
        counts = {**self.workers.counts, "checker_disagreements": self.scorer.disagreements}
        for name, description in {
            "check_limits": "Checks that exceeded their CPU time or memory.",
            "check_kills": "Workers that SIGKILL ended during a check, which is repeated once.",
            "checker_disagreements": "Formulas that one checker found right, and the other wrong.",
        }.items():
            yield CounterMetricFamily(f"rewardfleet_{name}", description, counts[name])
