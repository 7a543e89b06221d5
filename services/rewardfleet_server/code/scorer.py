"""Scoring of a program: run it on its tests, and return the verdicts."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.code import (
    CodeRequest,
    CodeScore,
    DatasetTests,
    Limits,
    Outcome,
    PlainTests,
    StdioTests,
    Verdict,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Status
from rewardfleet_server.anonymous_file import AnonymousFile
from rewardfleet_server.engine import CachePolicy, Plan
from rewardfleet_server.tracing import stage

from .cache_key import CacheKeys, lookup_keys, store_policy
from .checkers.runner import Checker, Checkers
from .datasets.rows import read_row
from .preflight import Preflight
from .sandboxes import Job, RunLimits, Sandbox
from .settings import CodeSettings
from .submission import SHORT_TEXT, Submission, SubmissionRun, why_no_program
from .verdict import SANDBOX_DIED, TestRun, plan_runs

#: Settings that verdicts depend on.
_CEILINGS = {"max_cpu_s", "max_wall_s", "max_memory_mb", "max_output_kb", "max_submission_s"}
#: Maximum number of suspicions that one score lists.
_MAX_SUSPICIONS = 20


class CodeScorer:
    """Scores programs in a sandbox.

    Args:
        name: The name of the sandbox, which is the `backend` of scores.
        sandbox: Where programs run.
        settings: Has the ceilings of limits.
    """

    def __init__(self, name: str, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._name = name
        self._sandbox = sandbox
        self._settings = settings
        self._preflight = Preflight(sandbox, settings)
        self._checkers = Checkers(sandbox, settings)
        ceilings = settings.model_dump(include=_CEILINGS)
        self._ceilings = {name.removeprefix("max_"): value for name, value in ceilings.items()}
        self._keys = CacheKeys(lambda: {**sandbox.provenance, **ceilings})

    async def plan(
        self,
        request: CodeRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - there is none
    ) -> Plan[CodeScore]:
        """Check the limits, extract the program, and parse the critique.

        Raises:
            InvalidRequest: A limit exceeds its ceiling.
        """
        texts = (request.revision, request.critique or "", request.original_program or "")
        if sum(map(len, texts)) <= SHORT_TEXT:
            submission = Submission.of(request)
        else:
            submission = await asyncio.to_thread(Submission.of, request)
        limits = self.run_limits(request.limits)
        compute = partial(self._score, request, submission, limits)
        if submission.critique_invalid or submission.no_program:  # scored without running it
            return Plan(self._name, compute)
        return Plan(self._name, compute, await self._cache_policy(request, submission))

    async def _cache_policy(
        self, request: CodeRequest, submission: Submission
    ) -> CachePolicy[CodeScore]:
        key = await self._keys.of(submission.program, request)
        compiler = await self._checkers.version(request.tests)
        if compiler is not None:
            key = hashlib.sha256(f"{key} {compiler}".encode()).hexdigest()
        with_original = submission.needs_original_run
        if with_original:  # whether the judgment is right depends on the original program as well
            parts = f"{key} {submission.judgment} {submission.original_program}"
            key = hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()
        return CachePolicy(
            lookup_keys(key, request.mode),
            store_policy=partial(store_policy, key, request.mode, with_original=with_original),
            is_valid=partial(_is_valid_cached, request),
            from_cached=partial(_from_cached, request, submission),
            audit_fields=partial(_audit_fields, request.mode),
        )

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return the provenance that all verdicts of the sandbox share."""
        return {"service": f"rewardfleet {__version__}", **self._sandbox.provenance}

    def check_ready(self) -> Mapping[str, str]:
        """Return the isolation level. Jails are probed before the service listens."""
        return {"isolation": self.isolation}

    @property
    def isolation(self) -> str:
        """The isolation level of programs."""
        return str(self._sandbox.provenance["isolation"])

    def run_limits(self, limits: Limits) -> RunLimits:
        """Convert the limits of a request to those of the sandbox.

        Raises:
            InvalidRequest: A limit exceeds its ceiling.
        """
        for name, requested in limits:
            ceiling = self._ceilings[name]
            if requested > ceiling:
                is_float = isinstance(requested, float)  # an integer may be too large for `:g`
                got = f"{requested:g}" if is_float else str(requested)[:20]
                raise InvalidRequest(
                    f"limits.{name}: this service allows at most {ceiling:g} (got {got})"
                )
        memory_bytes, output_bytes = limits.memory_mb * 2**20, limits.output_kb * 2**10
        return RunLimits(limits.cpu_s, limits.wall_s, memory_bytes, output_bytes)

    async def _score(
        self,
        request: CodeRequest,
        submission: Submission,
        limits: RunLimits,
        call_timeout_s: float | None,
    ) -> CodeScore:
        tests, limits = await self._plain_tests(request, limits)
        planned = await _plan_runs(tests)  # even if nothing is run: invalid tests are an error
        left_out = await self._preflight.check(tests, planned, limits)
        counted = _counted(tests, left_out)
        if left_out:
            planned = await _plan_runs(counted)
        checker = await self._checkers.prepare(tests)
        if submission.critique_invalid:
            return self._invalid_critique(submission.program, len(tests.cases))
        run = SubmissionRun(
            planned,
            limits,
            numbers=[n + 1 for n in range(len(tests.cases)) if n not in left_out],
            stop_at_failure=request.mode == "all_pass",
            max_seconds=self._max_seconds(call_timeout_s),
        )
        if submission.no_program is None:
            await self._execute(submission.program, run, checker)
        else:
            run.verdicts.append(
                Verdict(verdict=Outcome.COMPILE_ERROR, stderr=submission.no_program)
            )
        score = self._verdicts(run, request.mode, len(counted.cases))
        for index, reason in left_out.items():
            score.verdicts.insert(index, Verdict(verdict=Outcome.LEFT_OUT))
            score.left_out.append(f"test {index + 1}: {reason}")
        score.code = submission.program
        if submission.judgment is not None:
            score.critique_valid, score.judgment = True, submission.judgment
            passed = request.original_passed
            if passed is None and submission.original_program is not None:
                passed = await self._passes(submission.original_program, counted, run, checker)
            if passed is not None:
                right = passed == (submission.judgment == "correct")
                score.components["judgment_correct"] = float(right)
        return score

    def _max_seconds(self, call_timeout_s: float | None) -> float:
        """Return the time for all tests of a submission; see `SubmissionRun`.

        A program that uses it up must get its score before the call ends. How much of the call is
        over already is not the program's fault.
        """
        longest = self._settings.max_submission_s
        return longest if call_timeout_s is None else min(longest, call_timeout_s / 2)

    async def _plain_tests(
        self, request: CodeRequest, limits: RunLimits
    ) -> tuple[PlainTests, RunLimits]:
        """Read a dataset row as tests. Its time limit is used if the request gives none."""
        if not isinstance(request.tests, DatasetTests):
            return request.tests, limits
        tests, cpu_s = await asyncio.to_thread(read_row, request.tests)
        given = request.limits
        if cpu_s is None or "cpu_s" in given.model_fields_set:
            return tests, limits
        changed = {"cpu_s": cpu_s}
        if "wall_s" not in given.model_fields_set:  # keep it well above the CPU time
            changed["wall_s"] = max(given.wall_s, min(3 * cpu_s, self._settings.max_wall_s))
        return tests, self.run_limits(given.model_copy(update=changed))

    async def _execute(self, program: str, run: SubmissionRun, checker: Checker | None) -> None:
        """Run a program on its tests, and fill in the timing of the stages."""
        timing = run.timing
        with stage(timing, "backend"):
            is_first = True
            while is_first or run.paused:
                is_first = False
                job = Job(program, run.runs, run.run_limits)
                await self._sandbox.run(job, run.on_result, timing)
                if checker is not None:
                    await self._checkers.decide(checker, run)
        timing.backend = round(timing.backend - timing.queue, 3)
        inside = timing.fork + timing.run + timing.clean + timing.check
        timing.compare = round(timing.backend - inside, 3)

    async def _passes(
        self,
        original_program: str,
        tests: PlainTests,
        before: SubmissionRun,
        checker: Checker | None,
    ) -> bool | None:
        """Return whether the original program passes; None if the time is up before that is known.

        It has the time that the run of the revision left over.
        """
        if why_no_program(original_program) is not None:
            return False
        seconds = before.seconds_left
        if seconds <= 0:
            return None
        planned = await _plan_runs(tests)
        run = SubmissionRun(
            planned,
            before.limits,
            numbers=range(1, len(tests.cases) + 1),
            stop_at_failure=True,
            max_seconds=seconds,
        )
        await self._execute(original_program, run, checker)
        failures = {each.verdict for each in run.verdicts} - {Outcome.ACCEPTED}
        if failures == {Outcome.TIME_LIMIT} and run.seconds_left <= 0:
            return None  # a test had less time than its own limit
        if failures:
            return False
        return True if len(run.verdicts) == len(tests.cases) else None

    def _invalid_critique(self, program: str, count: int) -> CodeScore:
        """Return the score for a critique without exactly one judgment."""
        return CodeScore(
            score=0.0,
            status=Status.OK,
            backend=self._name,
            verdicts=[Verdict(verdict=Outcome.SKIPPED)] * count,
            code=program,
            critique_valid=False,
            isolation=self.isolation,
        )

    def _verdicts(self, run: SubmissionRun, mode: str, count: int) -> CodeScore:
        verdicts = run.verdicts
        if verdicts and verdicts[-1].verdict is Outcome.COMPILE_ERROR:  # as in all other tests
            rest = verdicts[-1].model_copy(update={"cpu_ms": 0.0, "wall_ms": 0.0})
        else:
            rest = Verdict(verdict=Outcome.SKIPPED)
        verdicts += [rest] * (count - len(verdicts))
        passed = sum(each.verdict is Outcome.ACCEPTED for each in verdicts)
        pass_rate = passed / count
        suspicions = sorted(run.suspicions, key=lambda each: SANDBOX_DIED not in each)
        return CodeScore(
            score=pass_rate if mode == "pass_rate" else float(passed == count),
            status=Status.OK,
            components={"pass_rate": pass_rate},
            backend=self._name,
            timing_ms=run.timing,
            pass_rate=pass_rate,
            verdicts=verdicts,
            isolation=self.isolation,
            suspicions=suspicions[:_MAX_SUSPICIONS],
        )


def _audit_fields(mode: str, score: CodeScore) -> object:
    """Return the outcomes in which two computations must agree; see `CachePolicy`.

    For `all_pass`, only those up to the first failure.
    """
    outcomes = [verdict.verdict for verdict in score.verdicts]
    if mode == "all_pass":
        failures = (n for n, each in enumerate(outcomes) if each is not Outcome.ACCEPTED)
        outcomes = outcomes[: next(failures, len(outcomes)) + 1]
    return outcomes, score.components.get("judgment_correct")


def _is_valid_cached(request: CodeRequest, score: CodeScore) -> bool:
    """Return whether a stored score can be one of this request; see `CachePolicy`."""
    outcomes = [verdict.verdict for verdict in score.verdicts]
    tests = request.tests
    if not (isinstance(tests, DatasetTests) or len(tests.cases) == len(outcomes)):
        return False
    outcomes = [each for each in outcomes if each is not Outcome.LEFT_OUT]
    if not outcomes:
        return False
    passed = outcomes.count(Outcome.ACCEPTED)
    right = score.components.get("judgment_correct")
    return score.pass_rate == passed / len(outcomes) and right in {None, 0.0, 1.0}


def _from_cached(request: CodeRequest, submission: Submission, score: CodeScore) -> CodeScore:
    """Adapt the score of an equivalent program, or of the other mode, to this request."""
    rate = score.pass_rate
    components = {"pass_rate": rate}
    if request.original_passed is not None and submission.judgment is not None:
        right = request.original_passed == (submission.judgment == "correct")
        components["judgment_correct"] = float(right)
    elif submission.needs_original_run and "judgment_correct" in score.components:
        components["judgment_correct"] = score.components["judgment_correct"]
    return score.model_copy(
        update={
            "score": rate if request.mode == "pass_rate" else float(rate == 1),
            "pass_rate": rate,
            "components": components,
            "code": submission.program,
            "judgment": submission.judgment,
            "critique_valid": None if request.critique is None else True,
        }
    )


def _counted(tests: PlainTests, left_out: Mapping[int, str]) -> PlainTests:
    """Return tests without the cases that do not count, of which not all are."""
    if not left_out:
        return tests
    cases = [each for index, each in enumerate(tests.cases) if index not in left_out]
    return tests.model_copy(update={"cases": cases})


async def _plan_runs(tests: PlainTests) -> Sequence[TestRun]:
    if isinstance(tests, StdioTests) and not tests.setup:
        return plan_runs(tests)
    return await asyncio.to_thread(plan_runs, tests)  # the setup and asserts are parsed
