"""Scoring of an answer: compared here if that has a bounded cost, else in a worker process."""

import asyncio
import hashlib
import json
import logging
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.answers import AnswersRequest, AnswersScore
from rewardfleet.wire.causes import AnswersCause
from rewardfleet.wire.errors import BackendFailed, InvalidRequest, Unavailable
from rewardfleet.wire.score import Status
from rewardfleet_server.cache.entry import source_version
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import CachePolicy, ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile

from .extraction import answer_of
from .forms import Check, Outcome, truths_of
from .pool import Workers
from .settings import AnswersSettings

log = logging.getLogger(__name__)

_SHORT_TEXT = 64 * 1024  #: characters of a text that is read on the event loop
#: What verdicts depend on besides the request.
_LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath", "pint", "jsonschema")
_KNOWN_GOOD = {"form": "expression", "answers": ["\\frac{2}{4}"], "reference": "0.5"}


class AnswersScorer:
    """Scores answers."""

    backend = "answers"  #: the `backend` of every score

    def __init__(self, workers: Workers, settings: AnswersSettings) -> None:
        self._workers = workers
        self._accept = settings.accept
        self._versions: dict[str, JsonValue] = {each: version(each) for each in _LIBRARIES}
        self._source = source_version(Path(__file__).parent)
        #: Formulas that one checker found right, and the other one wrong, for the metrics.
        self.disagreements = 0

    async def plan(
        self,
        request: AnswersRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - there is none
    ) -> ScoringPlan[AnswersScore]:
        """Read the reference (or raise InvalidRequest), and compare if that has a bounded cost."""
        is_long = len(request.response or "") > _SHORT_TEXT
        compared = partial(_compared, request)
        found = await asyncio.to_thread(compared) if is_long else compared()
        checks = [each for each in found if isinstance(each, Check)]
        right = any(isinstance(each, Outcome) and each.is_right for each in found)
        if request.response is None or right or not checks:
            return ScoringPlan(self.backend, partial(self._score, found))
        jobs = [{**each.job, "accept": self._accept} for each in checks]
        outcomes = [each.details for each in found if isinstance(each, Outcome)]
        parts = json.dumps([jobs, outcomes, self._versions, self._source], sort_keys=True)
        key = hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()
        rules = {name: rule for name, rule in checks[0].details.items() if name == "rule"}

        def from_cached(score: AnswersScore) -> AnswersScore:
            return score.model_copy(update={"details": {**score.details, **rules}})

        policy = CachePolicy((f"answers {key}",), from_cached=from_cached)
        return ScoringPlan(self.backend, partial(self._score, found), policy)

    async def _score(self, found: list[Outcome | Check], _: float | None) -> AnswersScore:
        score = AnswersScore(score=0.0, status=Status.OK, backend=self.backend)
        if not found:
            score.score, score.status = None, Status.ABSTAINED
            score.cause = AnswersCause.NO_ANSWER
            return score
        outcomes: list[Outcome] = []
        with stage(score.timing_ms, "backend"):
            for each in sorted(found, key=lambda each: isinstance(each, Check)):
                outcomes.append(await self._checked(each) if isinstance(each, Check) else each)
                if outcomes[-1].is_right:
                    break
        right = [each for each in outcomes if each.is_right]
        best = (right or outcomes)[0]
        score.score = float(bool(right))
        score.components = {"correct": score.score}
        score.cause, score.details = best.cause, best.details
        return score

    async def _checked(self, check: Check) -> Outcome:
        job = {**check.job, "accept": self._accept}
        reply = await self._workers.check(job)
        if reply["outcome"] == "too_complex" and reply["checkers"].get("numeric") == "equal":
            checkers = {**reply["checkers"], "math_verify": "too_complex"}
            reply = {"outcome": "right", "checkers": checkers}
        if reply["outcome"] == "too_complex" and "reference" in job:
            alone = await self._workers.check({**job, "answers": ["1"], "joined": ""})
            if alone["outcome"] in {"too_complex", "invalid"}:
                raise InvalidRequest("reference: to compare it takes too much time or memory")
        match reply["outcome"]:
            case "invalid":
                why = reply["why"]
                name = "" if why.startswith(("schema:", "units:")) else "reference: "
                raise InvalidRequest(f"{name}{why}")
            case "failed":
                raise BackendFailed(f"a check failed: {reply['why']}")
        if reply.get("disagree"):
            self.disagreements += 1
            log.info("checkers disagree: %s", json.dumps({**job, **reply["checkers"]})[:1000])
        if "rule" not in check.details:
            return Outcome(False, AnswersCause.NO_FINAL_ANSWER, check.details)
        details = {**check.details, **reply.get("checkers", {})}
        is_right = reply["outcome"] == "right"
        cause = None if is_right else AnswersCause[reply["outcome"].upper()]
        return Outcome(is_right, cause, details)

    async def probe(self) -> None:
        """Check a known-good answer; raise if it is not right."""
        reply = await self._workers.check({**_KNOWN_GOOD, "accept": "both"})
        if reply["outcome"] != "right":
            raise Unavailable(f"a known-good answer is {reply['outcome']}")

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return the versions that all scores depend on."""
        return {"service": f"rewardfleet {__version__}", "accept": self._accept, **self._versions}


def _compared(request: AnswersRequest) -> list[Outcome | Check]:
    """Compare an answer with each reference; return nothing if there is none to compare."""
    truths = truths_of(request)
    if request.response is None:
        return []
    text = answer_of(request.response)
    found: list[Outcome | Check] = []
    for truth in truths:
        found.append(truth.compare(text))
        if isinstance(found[-1], Outcome) and found[-1].is_right:
            return found[-1:]
    return found
