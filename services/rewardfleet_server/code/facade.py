"""`POST /run_code` and `POST /submit`, as SandboxFusion has them: its users change a URL only.

Programs run in this service's own sandbox. What fails on our side is an HTTP error, and never a
`Failed`. Where SandboxFusion rewards what is wrong, we do not; the README lists where.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rewardfleet.wire.code import CodeRequest, CodeScore, Limits, Outcome, Verdict
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.fusion import (
    CommandRunResult,
    EvalResult,
    EvalTestCase,
    RunCodeRequest,
    RunCodeResponse,
    StdioFiles,
    SubmitRequest,
)
from rewardfleet_server.pipeline import Endpoint, Journey
from rewardfleet_server.problems import explain

from .packed import Unreadable, unpacked
from .sandboxes import Ended, Job, Run, Sandbox
from .scorer import CodeScorer
from .settings import CodeSettings
from .verdict import failure

#: A run's seconds by the clock, for each of CPU: less than its users wait for an answer.
_WALL_FACTOR = 2.0
#: Seconds of a test for which the request names none, as SandboxFusion has them.
_OJ_SECONDS, _LCB_SECONDS = 20.0, 6.0
#: How near a number must come, as there.
_TOLERANCE = 1e-5
#: The status of a run that ended well, but for all that it wrote: that of SIGXFSZ.
_WROTE_TOO_MUCH = -25

_CASES = TypeAdapter(list[StdioFiles])

CodeJourney = Journey[CodeRequest, CodeScore]


def endpoints(
    scorer: CodeScorer, sandbox: Sandbox, settings: CodeSettings
) -> Sequence[Endpoint[Any, CodeRequest, CodeScore]]:
    """Return the code service's endpoints in SandboxFusion's wire format."""
    facade = Facade(scorer, sandbox, settings)
    return (
        Endpoint(
            "/run_code",
            "Run a program; SandboxFusion's format",
            RunCodeRequest,
            RunCodeResponse,
            facade.run_code,
        ),
        Endpoint(
            "/submit",
            "Judge a submission; SandboxFusion's format",
            SubmitRequest,
            EvalResult,
            facade.submit,
        ),
    )


class Facade:
    """Translates requests on their way in, and answers on their way out."""

    def __init__(self, scorer: CodeScorer, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._scorer = scorer
        self._sandbox = sandbox
        self._settings = settings

    async def run_code(self, request: RunCodeRequest, journey: CodeJourney) -> RunCodeResponse:
        """Run a program once; nothing is judged, and so nothing is scored."""
        limits = self._limits(request.run_timeout, request.memory_limit_MB)
        bounds = self._scorer.bounds(limits)
        run = Run(stdin=(request.stdin or "").encode())
        answers: list[RunCodeResponse] = []

        def look(ended: Ended) -> bool:
            answers.append(_ran(ended, failure(ended, bounds)))
            return False

        async with journey.slot():
            await self._sandbox.run(Job(request.code, [run], bounds), look)
        return answers[0]

    async def submit(self, request: SubmitRequest, journey: CodeJourney) -> EvalResult:
        """Score a completion by the tests that came with it."""
        if request.config.dataset_type.startswith("CommonOJ"):
            return await self._common_oj(request, journey)
        return await self._livecodebench(request, journey)

    async def _common_oj(self, request: SubmitRequest, journey: CodeJourney) -> EvalResult:
        config = request.config
        cases = await asyncio.to_thread(_cases, config.provided_data.get("test"))
        tests = {
            "kind": "stdio",
            "cases": [{**case.input.model_dump(), **case.output.model_dump()} for case in cases],
            "checker": "float",
            "tolerance": _TOLERANCE,
            "ignore_case": True,
        }
        goes_on = bool(config.extra.get("run_all_cases"))
        mode = "pass_rate" if goes_on else "all_pass"
        limits = self._limits(config.run_timeout or _OJ_SECONDS)
        score = await journey.score(_item(request.completion, tests, mode, limits))
        told = score.verdicts if goes_on else _until_failure(score.verdicts)
        return EvalResult(
            id=request.id,
            accepted=score.pass_rate == 1,
            extracted_code=score.code,
            tests=[
                EvalTestCase(
                    passed=verdict.verdict is Outcome.ACCEPTED,
                    exec_info=_told(verdict),
                    test_info=case.model_dump(),
                )
                for case, verdict in zip(cases, told, strict=False)
            ],
            extra=_extra(score),
        )

    async def _livecodebench(self, request: SubmitRequest, journey: CodeJourney) -> EvalResult:
        config = request.config
        row = {"test": await asyncio.to_thread(_unpacked, config.provided_data.get("test"))}
        tests = {"kind": "dataset", "dataset": "livecodebench", "row": row}
        limits = self._limits(config.run_timeout or _LCB_SECONDS)
        score = await journey.score(_item(request.completion, tests, "all_pass", limits))
        accepted = score.pass_rate == 1
        # One entry for all tests, as there: its users take the mean over the entries.
        last = _until_failure(score.verdicts)[-1]
        return EvalResult(
            id=request.id,
            accepted=accepted,
            extracted_code=score.code,
            full_code=score.code,
            tests=[EvalTestCase(passed=accepted, exec_info=_told(last))],
            extra=_extra(score),
        )

    def _limits(self, seconds: float, memory_mb: int = -1) -> Limits:
        most = self._settings.max_cpu_s
        if seconds > most:
            raise InvalidRequest(
                f"run_timeout: this service allows at most {most:g} s (got {seconds:g})"
            )
        limits = Limits(
            cpu_s=seconds, wall_s=min(seconds * _WALL_FACTOR, self._settings.max_wall_s)
        )
        if memory_mb <= 0:
            return limits
        return limits.model_copy(update={"memory_mb": memory_mb})


def _cases(given: Any) -> list[StdioFiles]:
    """Read the tests of a row of `CommonOJDataset`: a list, or its JSON."""
    try:
        is_text = isinstance(given, str)
        return _CASES.validate_json(given) if is_text else _CASES.validate_python(given)
    except ValidationError as error:
        raise InvalidRequest(f"config.provided_data.test: {explain(error, StdioFiles)}") from None


def _unpacked(given: Any) -> Any:
    """Unpack a row's tests, of which SandboxFusion has some as pickled objects."""
    try:
        return unpacked(given, "config.provided_data.test", may_be_object=True)
    except Unreadable as error:
        raise InvalidRequest(str(error)) from None


def _item(revision: str, tests: dict[str, Any], mode: str, limits: Limits) -> CodeRequest:
    # Who says nothing has failed his tests, as there.
    item = {"revision": revision or "\n", "tests": tests, "mode": mode, "limits": limits}
    try:
        return CodeRequest.model_validate(item)
    except ValidationError as error:
        raise InvalidRequest(explain(error, CodeRequest)) from None


def _until_failure(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    for count, verdict in enumerate(verdicts, 1):
        if verdict.verdict is not Outcome.ACCEPTED:
            return verdicts[:count]
    return verdicts


def _ran(ended: Ended, failed: Outcome | None) -> RunCodeResponse:
    return_code = None if failed is Outcome.TIME_LIMIT else ended.exit_code
    if failed is Outcome.OUTPUT_LIMIT:
        return_code = return_code or _WROTE_TOO_MUCH
    return _response(
        return_code,
        seconds=(ended.fork_ms + ended.run_ms) / 1000,
        cpu_seconds=ended.cpu_ms / 1000,
        stdout=ended.stdout.decode(errors="replace"),
        stderr=ended.stderr.decode(errors="replace"),
    )


def _told(verdict: Verdict) -> RunCodeResponse:
    """What ran, as far as a verdict tells it."""
    ran_well = verdict.verdict in {Outcome.ACCEPTED, Outcome.WRONG_ANSWER}
    is_late = verdict.verdict in {Outcome.TIME_LIMIT, Outcome.SKIPPED}
    return _response(
        None if is_late else 0 if ran_well else 1,
        seconds=verdict.wall_ms / 1000,
        cpu_seconds=verdict.cpu_ms / 1000,
        stdout=verdict.stdout,
        stderr=verdict.stderr,
    )


def _response(
    return_code: int | None, *, seconds: float, cpu_seconds: float, stdout: str, stderr: str
) -> RunCodeResponse:
    return RunCodeResponse(
        status="Success" if return_code == 0 else "Failed",
        run_result=CommandRunResult(
            status="TimeLimitExceeded" if return_code is None else "Finished",
            execution_time=seconds,
            cpu_time=cpu_seconds,
            return_code=return_code,
            stdout=stdout,
            stderr=stderr,
        ),
    )


def _extra(score: CodeScore) -> dict[str, Any]:
    return {"isolation": score.isolation, "suspicious": list(score.suspicious)}
