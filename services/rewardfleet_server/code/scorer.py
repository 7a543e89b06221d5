"""The code service's part of the journey: run the program on its tests, give the verdicts."""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue

from rewardfleet import __version__
from rewardfleet.wire.code import (
    CodeRequest,
    CodeScore,
    CodeTiming,
    DatasetTests,
    Judgment,
    Limits,
    Outcome,
    PlainTests,
    StdioTests,
    Verdict,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Status
from rewardfleet_server.pipeline import Plan
from rewardfleet_server.uploads import HeldFile

from .critique import judgment_of
from .datasets import plain_tests
from .extract import program_of
from .keys import Keys, keep, places
from .sandboxes import Bounds, Ended, Job, Sandbox
from .settings import CodeSettings
from .verdict import BROKE, Trial, trials

_CEILINGS = {"max_cpu_s", "max_wall_s", "max_memory_mb", "max_output_kb", "max_submission_s"}
#: How many suspicions one answer tells.
_MAX_SUSPICIONS = 20
#: Characters of texts that are read on the event loop, as that takes less than a millisecond.
_SHORT_TEXT = 20_000


@dataclass(frozen=True)
class _Task:
    """What a request comes down to.

    Attributes:
        judgment: What its critique says, if it has one that says something.
        is_void: Whether it has one that does not: then nothing is run.
        has_open_judgment: Whether the original must be run to know if the judgment is right.
    """

    program: str
    original: str | None
    judgment: Judgment | None
    is_void: bool
    has_open_judgment: bool


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
        ceilings = settings.model_dump(include=_CEILINGS)
        self._keys = Keys(lambda: {**sandbox.provenance, **ceilings})

    async def plan(self, request: CodeRequest, upload: HeldFile | None) -> Plan[CodeScore]:  # noqa: ARG002 - none is taken
        """Check the limits, find the program, and read the critique.

        Raises:
            InvalidRequest: A limit is beyond its ceiling.
        """
        texts = (request.revision, request.critique or "", request.original or "")
        if sum(map(len, texts)) <= _SHORT_TEXT:
            task = _read(request)
        else:
            task = await asyncio.to_thread(_read, request)
        bounds = self.bounds(request.limits)
        if task.is_void:  # told in no time
            return Plan(self._name, None, lambda: self._score(request, task, bounds))
        key = await self._keys.of(task.program, request)
        if task.has_open_judgment:  # whether it was right is found out by running the original
            key = hashlib.sha256(f"{key} {task.judgment} {task.original}".encode()).hexdigest()
        first, *others = places(key, request.mode)
        return Plan(
            self._name,
            first,
            lambda: self._score(request, task, bounds),
            other_keys=tuple(others),
            keep=partial(keep, key, request.mode, is_open=task.has_open_judgment),
            adopt=partial(_adopted, request, task),
            essence=partial(_essence, request.mode),
        )

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

    def _limits_of_row(self, limits: Limits, cpu_s: float) -> Limits:
        """Return the limits with a row's; the clock's backstop stays well behind it, if it may."""
        changed = {"cpu_s": cpu_s}
        if "wall_s" not in limits.model_fields_set:
            changed["wall_s"] = max(limits.wall_s, min(3 * cpu_s, self._settings.max_wall_s))
        return limits.model_copy(update=changed)

    async def _score(self, request: CodeRequest, task: _Task, bounds: Bounds) -> CodeScore:
        if isinstance(request.tests, DatasetTests):
            tests, cpu_s = await asyncio.to_thread(plain_tests, request.tests)
            if cpu_s is not None and "cpu_s" not in request.limits.model_fields_set:
                bounds = self.bounds(self._limits_of_row(request.limits, cpu_s))
        else:
            tests = request.tests
        examined = await _trials(tests)  # also where they are not run: bad tests are told
        if task.is_void:
            return self._void(task.program, len(tests.cases))
        exam = _Exam(examined, bounds, request.mode, self._settings.max_submission_s)
        await self._hold(exam, task.program)
        score = self._answer(exam, request.mode, len(tests.cases))
        score.code = task.program
        if task.judgment is not None:
            score.critique_valid, score.judgment = True, task.judgment
            passed = request.original_passed
            if passed is None and task.original is not None:
                passed = await self._passes(task.original, tests, exam)
            if passed is not None:
                right = passed == (task.judgment == "correct")
                score.components["judgment_correct"] = float(right)
        return score

    async def _hold(self, exam: "_Exam", program: str) -> None:
        """Run a program on its tests."""
        job = Job(program, exam.runs, exam.bounds)
        started = time.monotonic()
        waited = await self._sandbox.run(job, exam.look)
        spent = (time.monotonic() - started - waited) * 1000
        timing = exam.timing
        timing.queue = round(waited * 1000, 3)
        timing.backend = round(spent, 3)
        timing.judge = round(spent - timing.fork - timing.run - timing.clean, 3)

    async def _passes(self, original: str, tests: PlainTests, before: "_Exam") -> bool | None:
        """Whether the program that was judged passes; None where the time is up before it is known.

        It has what the revision left of the submission's time.
        """
        seconds = before.seconds_left
        if seconds <= 0:
            return None
        exam = _Exam(await _trials(tests), before.bounds, "all_pass", seconds)
        await self._hold(exam, original)
        if any(each.verdict is not Outcome.ACCEPTED for each in exam.verdicts):
            return False
        return True if len(exam.verdicts) == len(tests.cases) else None

    def _void(self, program: str, count: int) -> CodeScore:
        """Answer a critique without a judgment."""
        return CodeScore(
            score=0.0,
            status=Status.OK,
            backend=self._name,
            verdicts=[Verdict(verdict=Outcome.SKIPPED)] * count,
            code=program,
            critique_valid=False,
            isolation=self.check_ready()["isolation"],
        )

    def _answer(self, exam: "_Exam", mode: str, count: int) -> CodeScore:
        verdicts = exam.verdicts
        if verdicts and verdicts[-1].verdict is Outcome.COMPILE_ERROR:  # and so would the others
            rest = verdicts[-1].model_copy(update={"cpu_ms": 0.0, "wall_ms": 0.0})
        else:
            rest = Verdict(verdict=Outcome.SKIPPED)
        verdicts += [rest] * (count - len(verdicts))
        passed = sum(each.verdict is Outcome.ACCEPTED for each in verdicts)
        pass_rate = passed / count
        told = sorted(exam.suspicious, key=lambda each: BROKE not in each)
        return CodeScore(
            score=pass_rate if mode == "pass_rate" else float(passed == count),
            status=Status.OK,
            components={"pass_rate": pass_rate},
            backend=self._name,
            timing_ms=exam.timing,
            pass_rate=pass_rate,
            verdicts=verdicts,
            isolation=self.check_ready()["isolation"],
            suspicious=told[:_MAX_SUSPICIONS],
        )


def _read(request: CodeRequest) -> _Task:
    judgment = None if request.critique is None else judgment_of(request.critique)
    return _Task(
        program=program_of(request.revision),
        original=None if request.original is None else program_of(request.original),
        judgment=judgment,
        is_void=request.critique is not None and judgment is None,
        has_open_judgment=judgment is not None
        and request.original is not None
        and request.original_passed is None,
    )


def _essence(mode: str, score: CodeScore) -> object:
    """In what two computations must agree: in `all_pass`, up to the first failure."""
    outcomes = [verdict.verdict for verdict in score.verdicts]
    if mode == "all_pass":
        failures = (n for n, each in enumerate(outcomes) if each is not Outcome.ACCEPTED)
        outcomes = outcomes[: next(failures, len(outcomes)) + 1]
    return outcomes, score.components.get("judgment_correct")


def _adopted(request: CodeRequest, task: _Task, score: CodeScore) -> CodeScore:
    """Make verdicts on another program that is alike, or in another mode, this request's answer."""
    passed = sum(verdict.verdict is Outcome.ACCEPTED for verdict in score.verdicts)
    rate = passed / len(score.verdicts)
    components = {"pass_rate": rate}
    if request.original_passed is not None and task.judgment is not None:
        right = request.original_passed == (task.judgment == "correct")
        components["judgment_correct"] = float(right)
    elif task.has_open_judgment and "judgment_correct" in score.components:
        components["judgment_correct"] = score.components["judgment_correct"]
    return score.model_copy(
        update={
            "score": rate if request.mode == "pass_rate" else float(rate == 1),
            "pass_rate": rate,
            "components": components,
            "code": task.program,
            "judgment": task.judgment,
            "critique_valid": None if request.critique is None else True,
        }
    )


async def _trials(tests: PlainTests) -> Sequence[Trial]:
    if isinstance(tests, StdioTests):
        return trials(tests)
    return await asyncio.to_thread(trials, tests)  # asserts are parsed


class _Exam:
    """The verdicts of one submission, as its runs end; used by one thread."""

    def __init__(
        self, examined: Sequence[Trial], bounds: Bounds, mode: str, max_submission_s: float
    ) -> None:
        self.runs = [trial.run for trial in examined]
        self._trials = iter(examined)
        self.bounds = bounds
        self._stops_at_failure = mode == "all_pass"
        self._cpu_ms_left = max_submission_s * 1000
        self._wall_ms_left = max_submission_s * 1500
        self.verdicts: list[Verdict] = []
        self.suspicious: list[str] = []
        self.timing = CodeTiming()

    @property
    def seconds_left(self) -> float:
        """What another one may take, as `max_submission_s`."""
        return min(self._cpu_ms_left / 1000, self._wall_ms_left / 1500)

    def look(self, ended: Ended) -> bool:
        """Judge a run; return whether to go on with the next."""
        judged = next(self._trials).judge(ended, self.bounds)
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
