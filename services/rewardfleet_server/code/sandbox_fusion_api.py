"""`/run_code` and `/submit` in SandboxFusion's wire format; see docs/sandbox-fusion.md."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rewardfleet.wire import fusion
from rewardfleet.wire.code import CodeRequest, CodeScore, Limits, Outcome, Verdict
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import format_validation_error, validate
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.http.trainers import checked
from rewardfleet_server.observe.telemetry import RequestContext

from .datasets.columns import decode_column
from .judging.verdict import failure, first_failure
from .sandboxes import Job, ProgramRun, RunLimits, RunResult, Sandbox, run_once
from .scorer import CodeScorer
from .settings import CodeSettings

#: Wall time limit of a run as a multiple of its CPU time limit: less than clients wait.
_WALL_FACTOR = 2.0
#: CPU seconds per test if the request gives no limit, as in SandboxFusion.
_OJ_SECONDS, _LCB_SECONDS = 20.0, 6.0
#: Exit code of a run that exited normally but wrote too much: that of SIGXFSZ.
_OUTPUT_LIMIT_CODE = -25

_CASES = TypeAdapter(list[fusion.StdioTest])


@dataclass(frozen=True)
class SandboxFusionApi:
    """Converts SandboxFusion's requests to this service's, and the results back."""

    _engine: Engine[CodeRequest, CodeScore]
    _scorer: CodeScorer
    _sandbox: Sandbox  #: runs the programs of `/run_code`, which are not scored
    _settings: CodeSettings

    def routes(self) -> Sequence[Route[Any]]:
        return (
            Route(
                "/run_code",
                "Run a program; SandboxFusion's format",
                fusion.RunCodeRequest,
                fusion.RunCodeResponse,
                self.run_code,
                scores=False,
            ),
            Route(
                "/submit",
                "Score a submission; SandboxFusion's format",
                fusion.SubmitRequest,
                fusion.EvalResult,
                self.submit,
            ),
        )

    async def run_code(
        self, request: fusion.RunCodeRequest, context: RequestContext
    ) -> fusion.RunCodeResponse:
        """Run a program once, without a score; raise RewardFleetError if it cannot be run."""
        limits = self._scorer.run_limits(self._limits(request.run_timeout, request.memory_limit_MB))
        run = ProgramRun(stdin=(request.stdin or "").encode())
        async with self._engine.permit(context):
            result = await run_once(self._sandbox, Job(request.code, [run], limits))
        return await asyncio.to_thread(_run_response, result, limits)

    async def submit(
        self, request: fusion.SubmitRequest, context: RequestContext
    ) -> fusion.EvalResult:
        """Score a completion on the tests in its request; raise RewardFleetError if that fails."""
        config, is_oj = request.config, _is_oj(request)
        runs_all = is_oj and bool(config.extra.get("run_all_cases"))
        cases: list[fusion.StdioTest] = []
        item: CodeRequest | InvalidRequest
        try:
            tests, cases = await asyncio.to_thread(_tests, request)
            seconds = config.run_timeout or (_OJ_SECONDS if is_oj else _LCB_SECONDS)
            fields = {
                "revision": request.completion,
                "tests": tests,
                "mode": "pass_rate" if runs_all else "all_pass",
                "limits": self._limits(seconds),
            }
            item = validate(CodeRequest, fields)
        except InvalidRequest as error:  # counted like an invalid item of any other route
            item = error
        score = checked(await self._engine.score_item(item, context))
        verdicts = score.verdicts[: None if runs_all else first_failure(score.verdicts) + 1]
        is_accepted = score.pass_rate == 1
        if is_oj:  # one entry per case that was run
            results = [
                fusion.EvalTestCase(
                    passed=verdict.verdict is Outcome.ACCEPTED,
                    exec_info=_verdict_response(verdict),
                    test_info=case.model_dump(),
                )
                for case, verdict in zip(cases, verdicts, strict=False)
            ]
        else:  # one entry for all tests, as in SandboxFusion: its users take the mean over entries
            last = _verdict_response(verdicts[-1])
            results = [fusion.EvalTestCase(passed=is_accepted, exec_info=last)]
        return fusion.EvalResult(
            id=request.id,
            accepted=is_accepted,
            extracted_code=score.code,
            full_code=None if is_oj else score.code,
            tests=results,
            extra=score.model_dump(include={"isolation", "suspicions", "cause"}),
        )

    def _limits(self, seconds: float, memory_mb: int = -1) -> Limits:
        ceiling = self._settings.max_cpu_s
        if seconds > ceiling:
            allowed = f"this service allows at most {ceiling:g} s"
            raise InvalidRequest(f"run_timeout: {allowed} (got {seconds:g})")
        wall_s = min(seconds * _WALL_FACTOR, self._settings.max_wall_s)
        limits = Limits(cpu_s=seconds, wall_s=wall_s)
        return limits.model_copy(update={"memory_mb": memory_mb}) if memory_mb > 0 else limits


def _is_oj(request: fusion.SubmitRequest) -> bool:
    return request.config.dataset_type.startswith("CommonOJ")


def _tests(request: fusion.SubmitRequest) -> tuple[dict[str, Any], list[fusion.StdioTest]]:
    """Return the tests of a request, and those of `CommonOJDataset` as they came."""
    column = "config.provided_data.test"
    given: Any = request.config.provided_data.get("test")
    if not _is_oj(request):  # some of its rows are pickled objects
        row = {"test": decode_column(given, column)}
        return {"kind": "dataset", "dataset": "livecodebench", "row": row}, []
    try:  # a list, or its JSON
        validate_cases = _CASES.validate_json if isinstance(given, str) else _CASES.validate_python
        cases = validate_cases(given)
    except ValidationError as error:
        raise InvalidRequest(
            f"{column}: {format_validation_error(error, fusion.StdioTest)}"
        ) from None
    pairs = [{"stdin": case.input.stdin, "stdout": case.output.stdout} for case in cases]
    return {"kind": "stdio", "cases": pairs, "checker": "sandbox_fusion"}, cases


def _run_response(result: RunResult, limits: RunLimits) -> fusion.RunCodeResponse:
    failed = failure(result, limits)
    return_code = None if failed is Outcome.TIME_LIMIT else result.exit_code
    if failed is Outcome.OUTPUT_LIMIT:
        return_code = return_code or _OUTPUT_LIMIT_CODE
    texts = (each.decode(errors="replace") for each in (result.stdout, result.stderr))
    return _response(return_code, result.fork_ms + result.run_ms, result.cpu_ms, *texts)


def _verdict_response(verdict: Verdict) -> fusion.RunCodeResponse:
    ran_well = verdict.verdict in {Outcome.ACCEPTED, Outcome.WRONG_ANSWER}
    is_late = verdict.verdict in {Outcome.TIME_LIMIT, Outcome.SKIPPED}
    return_code = None if is_late else 0 if ran_well else 1
    return _response(return_code, verdict.wall_ms, verdict.cpu_ms, verdict.stdout, verdict.stderr)


def _response(
    return_code: int | None, wall_ms: float, cpu_ms: float, stdout: str, stderr: str
) -> fusion.RunCodeResponse:
    return fusion.RunCodeResponse(
        status="Success" if return_code == 0 else "Failed",
        run_result=fusion.CommandRunResult(
            status="TimeLimitExceeded" if return_code is None else "Finished",
            execution_time=wall_ms / 1000,
            cpu_time=cpu_ms / 1000,
            return_code=return_code,
            stdout=stdout,
            stderr=stderr,
        ),
    )
