"""The code service's part of the journey: run the program on its tests, give the verdicts."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.code import (
    CodeRequest,
    CodeScore,
    CodeTiming,
    Limits,
    Outcome,
    StdioTests,
    Verdict,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Status
from rewardfleet_server.pipeline import Plan
from rewardfleet_server.uploads import HeldFile

from .extract import program_of
from .sandboxes import Bounds, Ended, Job, Sandbox
from .settings import CodeSettings
from .verdict import Trial, trials

#: How many suspicions one answer tells.
_MAX_SUSPICIONS = 20


class CodeScorer:
    """Judges programs in a sandbox.

    Args:
        name: The sandbox's name, as answers tell it.
        settings: Asked for the ceilings.
    """

    def __init__(self, name: str, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._name = name
        self._sandbox = sandbox
        self._settings = settings

    async def plan(self, request: CodeRequest, upload: HeldFile | None) -> Plan[CodeScore]:  # noqa: ARG002 - none is taken
        """Check the limits and find the program.

        Raises:
            InvalidRequest: A limit is beyond its ceiling, or there are several programs.
        """
        bounds = self.bounds(request.limits)
        program = program_of(request.revision)
        return Plan(self._name, None, lambda: self._score(request, program, bounds))

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return what all verdicts of the sandbox have in common."""
        return {"service": f"rewardfleet {__version__}", **self._sandbox.provenance}

    def check_ready(self) -> Mapping[str, str]:
        """Return how programs are kept in. Jails are probed before the service listens."""
        return {"isolation": str(self._sandbox.provenance["isolation"])}

    def bounds(self, limits: Limits) -> Bounds:
        """Return the limits as the sandbox takes them.

        Raises:
            InvalidRequest: One is beyond its ceiling.
        """
        for name, asked in limits:
            ceiling = getattr(self._settings, f"max_{name}")
            if asked > ceiling:
                raise InvalidRequest(
                    f"limits.{name}: this service allows at most {ceiling:g} (got {asked:g})"
                )
        memory_bytes, output_bytes = limits.memory_mb * 2**20, limits.output_kb * 2**10
        return Bounds(limits.cpu_s, limits.wall_s, memory_bytes, output_bytes)

    async def _score(self, request: CodeRequest, program: str, bounds: Bounds) -> CodeScore:
        if isinstance(request.tests, StdioTests):
            examined = trials(request.tests)
        else:  # asserts are parsed
            examined = await asyncio.to_thread(trials, request.tests)
        exam = _Exam(examined, bounds, request.mode, self._settings.max_submission_s)
        job = Job(program, [trial.run for trial in examined], bounds)
        started = time.monotonic()
        waited = await self._sandbox.run(job, exam.look)
        spent = (time.monotonic() - started - waited) * 1000
        return self._answer(exam, request, waited * 1000, spent)

    def _answer(
        self, exam: "_Exam", request: CodeRequest, queue_ms: float, spent_ms: float
    ) -> CodeScore:
        count = len(request.tests.cases)
        verdicts = exam.verdicts
        if verdicts and verdicts[-1].verdict is Outcome.COMPILE_ERROR:  # and so would the others
            rest = verdicts[-1].model_copy(update={"cpu_ms": 0.0, "wall_ms": 0.0})
        else:
            rest = Verdict(verdict=Outcome.SKIPPED)
        verdicts += [rest] * (count - len(verdicts))
        passed = sum(each.verdict is Outcome.ACCEPTED for each in verdicts)
        pass_rate = passed / count
        score = pass_rate if request.mode == "pass_rate" else float(passed == count)
        timing = exam.timing
        timing.queue = round(queue_ms, 3)
        timing.backend = round(spent_ms, 3)
        timing.judge = round(spent_ms - timing.fork - timing.run - timing.clean, 3)
        return CodeScore(
            score=score,
            status=Status.OK,
            components={"pass_rate": pass_rate},
            backend=self._name,
            timing_ms=timing,
            pass_rate=pass_rate,
            verdicts=verdicts,
            isolation=self.check_ready()["isolation"],
            suspicious=exam.suspicious[:_MAX_SUSPICIONS],
        )


class _Exam:
    """The verdicts of one submission, as its runs end; used by one thread."""

    def __init__(
        self, examined: Sequence[Trial], bounds: Bounds, mode: str, max_submission_s: float
    ) -> None:
        self._trials = iter(examined)
        self._bounds = bounds
        self._stops_at_failure = mode == "all_pass"
        self._cpu_ms_left = max_submission_s * 1000
        self._wall_ms_left = max_submission_s * 1500
        self.verdicts: list[Verdict] = []
        self.suspicious: list[str] = []
        self.timing = CodeTiming()

    def look(self, ended: Ended) -> bool:
        """Judge a run; return whether to go on with the next."""
        judged = next(self._trials).judge(ended, self._bounds)
        number = len(self.verdicts) + 1
        self.suspicious += [f"test {number}: {each}" for each in judged.suspicious]
        self.verdicts += judged.verdicts
        self.timing.fork = round(self.timing.fork + ended.fork_ms, 3)
        self.timing.run = round(self.timing.run + ended.run_ms, 3)
        self.timing.clean = round(self.timing.clean + ended.clean_ms, 3)
        # Programs that only ever time out must get their verdict before the deadline, too.
        self._cpu_ms_left -= ended.cpu_ms
        self._wall_ms_left -= ended.fork_ms + ended.run_ms
        outcomes = {verdict.verdict for verdict in judged.verdicts}
        failed = outcomes != {Outcome.ACCEPTED}
        return (
            min(self._cpu_ms_left, self._wall_ms_left) > 0
            and Outcome.COMPILE_ERROR not in outcomes
            and not (failed and self._stops_at_failure)
        )
