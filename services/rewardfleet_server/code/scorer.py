"""Scoring of a program: run it on its tests, and return the verdicts."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.causes import CodeCause
from rewardfleet.wire.code import CodeRequest, CodeScore, DatasetTests, Limits, Outcome, Verdict
from rewardfleet.wire.digest import digest_of
from rewardfleet.wire.errors import DeadlineExceeded, InvalidRequest, Unavailable
from rewardfleet.wire.score import Status
from rewardfleet_server.cache.single_flight import Memo
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import CachePolicy, ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile

from .checkers.runner import Checker, Checkers
from .judging.cache_key import NOT_CACHED, CacheKeys, lookup_keys, store_policy
from .judging.verdict import SANDBOX_DIED, first_failure
from .running.packages import missing_module, package_of
from .running.submission import Submission, SubmissionRun, why_no_program
from .sandboxes import Job, ProgramRun, RunLimits, Sandbox, run_once
from .settings import MAX_OUTPUT_KB, CodeSettings
from .tests.completion import complete
from .tests.preflight import Preflight
from .tests.prepared import PreparedTests, prepare
from .text_parser import TextParser

#: Seconds after which to try an item again that has waited until its deadline. By then, the call
#: has ended, too: see `_MAX_RESPONSE_SECONDS` of the client.
_RETRY_AFTER_S = 5
_MAX_SUSPICIONS = 20  #: maximum number of suspicions that one score lists
_MAX_PACKAGES = 50  #: packages that are counted by name: a program can print any
#: Bytes of prepared tests that are held in memory; docs/code-service.md names this limit.
_MAX_PREPARED = 128 * 2**20
#: Characters of a program that is completed on the event loop, and bytes of prepared tests whose
#: runs are planned there.
_SHORT_PROGRAM, _SMALL_TESTS = 20_000, 100_000

#: What precedes the path or the call that a jail refused, in the last line of a failed program.
_REFUSED = "\nrefused by the jail: "
#: A program that prints what it reads, and its limits.
_KNOWN_GOOD = Job(
    "print(input())", [ProgramRun(stdin=b"works")], RunLimits(5.0, 20.0, 64 * 2**20, 2**16)
)

#: Returns the tests of a request, prepared.
Prepared = Callable[[], Coroutine[None, None, PreparedTests]]


class CodeScorer:
    """Scores programs in a sandbox, whose name is the `backend` of scores."""

    def __init__(self, name: str, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._name = name
        self._sandbox = sandbox
        self._settings = settings
        self._tests: Memo[PreparedTests] = Memo(_MAX_PREPARED, lambda tests: tests.bytes)
        self._preflight = Preflight(sandbox, settings, self._run_solution)
        self._checkers = Checkers(sandbox, settings)
        self.counts = Counter[str]()  #: by the names of the service's metrics
        #: Programs that failed a test because of what the jail refuses, by the package that did it.
        self.refused_by_jail = Counter({"": 0})  # a metric without samples is none
        #: Seconds of CPU time for all runs of a program, in a call that has all of its time.
        self._max_seconds = min(settings.max_submission_s, settings.deadline_s / 2)
        #: The largest values of a request's limits, by field; and that of a submission.
        self.ceilings = {
            "cpu_s": settings.max_cpu_s,
            "wall_s": settings.max_wall_s,
            "memory_mb": settings.max_memory_mb,
            "output_kb": MAX_OUTPUT_KB,
            "submission_s": self._max_seconds,
        }
        self._parser = TextParser()
        self._keys = CacheKeys(self._parser, lambda: {**sandbox.provenance, **self.ceilings})

    async def plan(
        self,
        request: CodeRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - there is none
    ) -> ScoringPlan[CodeScore]:
        """Check the limits (or raise InvalidRequest), find the program, and parse the critique."""
        digest = digest_of(request.tests.model_dump_json())
        preparing = partial(asyncio.to_thread, prepare, request.tests, digest)
        prepared = partial(self._tests.get, digest, preparing)
        try:
            called: Collection[str] = (await prepared()).called
        except InvalidRequest:  # raised again where the program is scored
            called = ()
        submission = await Submission.of(request, self._parser, called)
        limits = self.run_limits(request.limits)
        compute = partial(self._score, request, prepared, submission, limits)
        overdue = None if self.isolation == "fusion" else _overdue
        if submission.critique_invalid or why_no_program(submission.program):  # nothing runs
            return ScoringPlan(self._name, compute, overdue=overdue)
        policy = None
        if chance := await self._parser.chance(submission.program):
            compute = partial(compute, chance=chance)
        else:
            policy = await self._cache_policy(request, prepared, digest, submission)
        timeout_s = 2 * self._max_seconds
        return ScoringPlan(self._name, compute, policy, full_timeout_s=timeout_s, overdue=overdue)

    async def _cache_policy(
        self, request: CodeRequest, prepared: Prepared, digest: str, submission: Submission
    ) -> CachePolicy[CodeScore]:
        program, uses = submission.program, None
        if not isinstance(request.tests, DatasetTests):  # a row is not read for a cached verdict
            tests = await prepared()
            program, uses = await _completed(program, tests), tests.uses
        key = await self._keys.of(program, request, digest, uses)
        compiler = await self._checkers.version(request.tests)
        if compiler is not None:
            key = digest_of(f"{key} {compiler}")
        with_original = submission.needs_original_run
        if with_original:  # whether the judgment is right depends on the original program as well
            key = digest_of(f"{key} {submission.judgment} {submission.original_program}")
        return CachePolicy(
            lookup_keys(key, request.mode),
            store_policy=partial(store_policy, key, request.mode, with_original=with_original),
            is_valid=partial(_is_valid_cached, request),
            from_cached=partial(_from_cached, submission),
            audit_fields=partial(_audit_fields, request.mode),
            # A policy may write a megabyte, which others would wait for at the cache's disk.
            not_stored=frozenset({"code"}),
        )

    def close(self) -> None:
        self._parser.close()

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return the provenance that all verdicts of the sandbox share."""
        return {"service": f"rewardfleet {__version__}", **self._sandbox.provenance}

    async def probe(self) -> None:
        """Run a known-good program; raise if it does not run, or fails."""
        result = await run_once(self._sandbox, _KNOWN_GOOD)
        if result.stdout.strip() != b"works":
            why = result.stopped or result.stderr[-300:].decode(errors="replace")
            raise Unavailable(f"a known-good program fails: {why}")

    @property
    def isolation(self) -> str:
        return str(self._sandbox.provenance["isolation"])

    def run_limits(self, limits: Limits) -> RunLimits:
        """Convert limits to those of the sandbox; raise InvalidRequest beyond their ceilings."""
        for name, requested in limits:
            ceiling = self.ceilings[name]
            if requested > ceiling:
                is_float = isinstance(requested, float)  # an integer may be too large for `:g`
                got = f"{requested:g}" if is_float else str(requested)[:20]
                allowed = f"this service allows at most {ceiling:g}"
                raise InvalidRequest(f"limits.{name}: {allowed} (got {got})")
        memory_bytes, output_bytes = limits.memory_mb * 2**20, limits.output_kb * 2**10
        return RunLimits(limits.cpu_s, limits.wall_s, memory_bytes, output_bytes)

    async def _score(
        self,
        request: CodeRequest,
        prepared: Prepared,
        submission: Submission,
        limits: RunLimits,
        call_timeout_s: float | None,
        *,
        chance: str = "",
    ) -> CodeScore:
        tests = await prepared()
        limits = self._limits_of_row(request.limits, tests.limits, limits)
        # Even if nothing is run: invalid tests are an error.
        left_out = await self._preflight.check(tests, limits)
        tests = tests.without(left_out) if left_out else tests
        await self._preflight.check_solution(tests, limits)
        tests = await self._preflight.repeated_as_needed(tests, limits)
        checker = await self._checkers.prepare(tests)
        if request.revision is None:
            cause = CodeCause.NO_ANSWER
            return CodeScore(score=None, status=Status.ABSTAINED, backend=self._name, cause=cause)
        if submission.critique_invalid:
            return CodeScore(
                score=0.0,
                components={request.mode: 0.0},
                status=Status.OK,
                backend=self._name,
                verdicts=[Verdict(verdict=Outcome.SKIPPED)] * len(tests.tests.cases),
                code=submission.program,
                critique_valid=False,
                cause=CodeCause.NO_JUDGMENT,
                isolation=self.isolation,
            )
        # A program that uses up its budget must be stopped before the call ends. How much of the
        # call is over already is not the program's fault.
        budget = max_seconds = self._max_seconds
        if call_timeout_s is not None:
            max_seconds = min(budget, call_timeout_s / 2)
        run = await _planned(tests, limits, max_seconds, stop_at_failure=request.mode == "all_pass")
        if why := why_no_program(submission.program):
            run.verdicts.append(Verdict(verdict=Outcome.COMPILE_ERROR, stderr=why))
        else:
            await self._execute(await _completed(submission.program, tests), run, checker)
        if run.was_cut and max_seconds < budget:
            raise _too_little_time(max_seconds, budget)
        score = self._verdicts(run, request.mode, tests.alike)
        for index, reason in left_out.items():
            score.verdicts.insert(index, Verdict(verdict=Outcome.LEFT_OUT))
            score.left_out.append(f"test {index + 1}: {reason}")
        if chance or tests.chance:  # the verdicts may be others the next time
            source = f"program uses {chance}" if chance else f"tests use {tests.chance}"
            score.provenance[NOT_CACHED] = f"the {source}"
        score.code = submission.program
        score.cause = submission.cause_of(score)
        if submission.judgment is not None:
            score.critique_valid, score.judgment = True, submission.judgment
            passed = request.original_passed
            if passed is None and submission.original_program is not None:
                original = await _completed(submission.original_program, tests)
                passed = await self._passes(original, tests, run, checker)
                if passed is None and max_seconds < budget:
                    raise _too_little_time(max_seconds, budget)
            if passed is not None:
                score.details["judgment_correct"] = submission.is_judgment_right(passed)
        return score

    def _limits_of_row(
        self, given: Limits, of_row: Mapping[str, float], limits: RunLimits
    ) -> RunLimits:
        """Return the limits with those of a row, unless the request gives them."""
        changed = {k: each for k, each in of_row.items() if k not in given.model_fields_set}
        if not changed:
            return limits
        if "wall_s" not in given.model_fields_set:  # keep it well above the CPU time
            longest = min(3 * changed.get("cpu_s", 0), self._settings.max_wall_s)
            changed["wall_s"] = max(given.wall_s, longest)
        try:
            return self.run_limits(given.model_copy(update=changed))
        except InvalidRequest as error:
            column = "memory_limit" if "memory_mb" in error.detail else "time_limit"
            raise InvalidRequest(f"tests.row: {column}: as {error.detail}") from None

    async def _run_solution(
        self, tests: PreparedTests, limits: RunLimits, stop_at_failure: bool
    ) -> SubmissionRun:
        run = await _planned(tests, limits, self._max_seconds, stop_at_failure=stop_at_failure)
        await self._execute(tests.solution or "", run, await self._checkers.prepare(tests))
        return run

    async def _execute(self, program: str, run: SubmissionRun, checker: Checker | None) -> None:
        timing = run.timing
        with stage(timing, "backend"):
            while True:
                job = Job(program, run.runs, run.run_limits)
                await self._sandbox.run(job, run.on_result, timing)
                if checker is not None:
                    await self._checkers.decide(checker, run)
                if not run.paused:
                    break
        timing.backend = round(timing.backend - timing.queue, 3)
        inside = timing.fork + timing.run + timing.clean + timing.check
        timing.compare = round(timing.backend - inside, 3)

    async def _passes(
        self,
        original_program: str,
        tests: PreparedTests,
        before: SubmissionRun,
        checker: Checker | None,
    ) -> bool | None:
        """Return whether the original program passes in the time left; None if that is unknown."""
        if why_no_program(original_program) is not None:
            return False
        if before.seconds_left <= 0:
            return None
        run = await _planned(tests, before.limits, before.seconds_left, stop_at_failure=True)
        await self._execute(original_program, run, checker)
        if run.was_cut:
            return None
        if any(each.verdict is not Outcome.ACCEPTED for each in run.verdicts):
            return False
        return True if len(run.verdicts) == len(run.numbers) else None

    def _verdicts(self, run: SubmissionRun, mode: str, alike: str) -> CodeScore:
        verdicts, count = run.verdicts, len(run.numbers)
        if verdicts and verdicts[-1].verdict is Outcome.COMPILE_ERROR:  # as in all other tests
            rest = verdicts[-1].model_copy(update={"cpu_ms": 0.0, "wall_ms": 0.0})
        else:
            rest = Verdict(verdict=Outcome.SKIPPED)
        for verdict in verdicts:
            if verdict.verdict is Outcome.RUNTIME_ERROR:
                verdict.missing_module = missing_module(verdict.stderr)
                verdict.refused_by_jail = verdict.stderr.partition(_REFUSED)[2].strip()[:200]
        self.counts["missing_modules"] += any(each.missing_module for each in verdicts)
        if refused := next((each for each in verdicts if each.refused_by_jail), None):
            counted, package = self.refused_by_jail, package_of(refused.stderr)
            is_named = package in counted or len(counted) < _MAX_PACKAGES
            counted[package if is_named else "other"] += 1
        self.counts["program_decisions"] += sum(
            each.verdict is Outcome.ACCEPTED and each.verdict_by == "jail" for each in verdicts
        )
        verdicts += [rest] * (count - len(verdicts))
        passed = sum(each.verdict is Outcome.ACCEPTED for each in verdicts)
        pass_rate = passed / count
        suspicions = sorted(run.suspicions, key=lambda each: SANDBOX_DIED not in each)
        self.counts["alike_outputs"] += bool(alike)
        return CodeScore(
            **_reward(mode, pass_rate),
            status=Status.OK,
            backend=self._name,
            timing_ms=run.timing,
            verdicts=verdicts,
            isolation=self.isolation,
            suspicions=[*suspicions[: _MAX_SUSPICIONS - 1], *filter(None, [alike])],
        )


def _reward(mode: str, rate: float | None) -> dict[str, Any]:
    """Return the fields of a score that depend on the mode, after which its component is named."""
    score = rate if mode == "pass_rate" else float(rate == 1)
    details = {} if mode == "pass_rate" else {"pass_rate": rate}
    return {"score": score, "pass_rate": rate, "components": {mode: score}, "details": details}


def _audit_fields(mode: str, score: CodeScore) -> object:
    """Return the outcomes in which two computations must agree: those that the mode looks at."""
    count = first_failure(score.verdicts) + 1 if mode == "all_pass" else None
    outcomes = [verdict.verdict for verdict in score.verdicts[:count]]
    return outcomes, score.details.get("judgment_correct")


def _is_valid_cached(request: CodeRequest, score: CodeScore) -> bool:
    """Return whether a stored score can be one of this request; see `CachePolicy`."""
    outcomes = [verdict.verdict for verdict in score.verdicts]
    tests = request.tests
    if not (isinstance(tests, DatasetTests) or len(tests.cases) == len(outcomes)):
        return False
    counted = len(outcomes) - outcomes.count(Outcome.LEFT_OUT)
    if counted == 0 or {*map(type, outcomes)} != {Outcome}:
        return False
    passed = outcomes.count(Outcome.ACCEPTED)
    right = score.details.get("judgment_correct")
    return score.pass_rate == passed / counted and right in {None, 0.0, 1.0}


def _from_cached(submission: Submission, score: CodeScore) -> CodeScore:
    """Adapt the score of an equivalent program, or of the other mode, to this request."""
    request = submission.request
    reward = _reward(request.mode, score.pass_rate)
    if request.original_passed is not None and submission.judgment is not None:
        is_right = submission.is_judgment_right(request.original_passed)
        reward["details"]["judgment_correct"] = is_right
    elif submission.needs_original_run and "judgment_correct" in score.details:
        reward["details"]["judgment_correct"] = score.details["judgment_correct"]
    return score.model_copy(
        update={
            **reward,
            "code": submission.program,
            "cause": submission.cause_of(score),
            "judgment": submission.judgment,
            "critique_valid": None if request.critique is None else True,
        }
    )


def _overdue() -> Unavailable:
    """Return the failure of an item whose program would have used up its budget before."""
    return Unavailable(
        "the machine is too busy: the program waited until the deadline of this request",
        retry_after=_RETRY_AFTER_S,
    )


def _too_little_time(seconds: float, budget: float) -> DeadlineExceeded:
    """Return the failure of a call whose timeout cut the program's own time.

    A verdict would be another one for a caller who waits for longer, and is stored for all.
    """
    error = DeadlineExceeded(
        f"the program needs more than {seconds:g} s, half of this call's timeout: "
        f"give a timeout of {2 * budget:g} s, or tests and limits that take less"
    )
    error.retryable = True
    return error


async def _completed(program: str, tests: PreparedTests) -> str:
    if not tests.prompt.stub or len(program) <= _SHORT_PROGRAM:
        return complete(program, tests.prompt)
    return await asyncio.to_thread(complete, program, tests.prompt)


async def _planned(
    tests: PreparedTests, limits: RunLimits, max_seconds: float, *, stop_at_failure: bool
) -> SubmissionRun:
    is_small = tests.bytes <= _SMALL_TESTS
    runs = tests.runs() if is_small else await asyncio.to_thread(tests.runs)
    return SubmissionRun(runs, limits, tests.numbers, max_seconds, stop_at_failure=stop_at_failure)
