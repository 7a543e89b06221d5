"""`POST /submissions` in Judge0's wire format, as the example plugin of ms-swift calls it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rewardfleet.wire.code import CodeRequest, CodeScore, Outcome
from rewardfleet.wire.trainers import (
    TEXT_FIELDS,
    Judge0Request,
    Judge0Response,
    Judge0Status,
)
from rewardfleet.wire.validation import validate, validate_json
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.telemetry import RequestContext

#: Judge0's numbers and descriptions; of any other outcome, those of `_OTHER`.
_STATUSES = {
    Outcome.ACCEPTED: (3, "Accepted"),
    Outcome.WRONG_ANSWER: (4, "Wrong Answer"),
    Outcome.TIME_LIMIT: (5, "Time Limit Exceeded"),
    Outcome.COMPILE_ERROR: (6, "Compilation Error"),
    Outcome.OUTPUT_LIMIT: (8, "Runtime Error (SIGXFSZ)"),
    Outcome.RUNTIME_ERROR: (11, "Runtime Error (NZEC)"),
}
_OTHER = (12, "Runtime Error (Other)")


class Judge0Api:
    """Converts submissions to items, and their scores back.

    Args:
        engine: Scores the submissions.
    """

    def __init__(self, engine: Engine[CodeRequest, CodeScore]) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route[Any]]:
        """Return the route, with and without a slash at its end: ms-swift sends one."""
        decode = partial(validate_json, Judge0Request, policy_fields=TEXT_FIELDS)
        return [
            Route(path, "Run a program on one test; Judge0's format", Judge0Request,
                  Judge0Response, self.submit, decode)
            for path in ("/submissions", "/submissions/")
        ]  # fmt: skip

    async def submit(self, request: Judge0Request, context: RequestContext) -> Judge0Response:
        """Score a program on its test.

        Raises:
            RewardFleetError: There is no score.
        """
        case = {"stdin": request.stdin or "", "stdout": request.expected_output}
        tests = {"kind": "stdio", "cases": [case], "checker": "lines"}
        limits = {"cpu_s": request.cpu_time_limit}
        fields = {"revision": request.source_code, "tests": tests, "limits": limits}
        score = await self._engine.score_item(validate(CodeRequest, fields), context)
        (verdict,) = score.verdicts
        number, description = _STATUSES.get(verdict.verdict, _OTHER)
        return Judge0Response(
            status=Judge0Status(id=number, description=description),
            stdout=verdict.stdout,
            stderr=verdict.stderr,
            time=f"{verdict.cpu_ms / 1000:.3f}",
        )
