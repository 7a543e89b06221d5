"""`POST /rlinf/score`: the judges in the format of the original LIBERO reward server.

Its client, of RLinf-RLAIF, takes the simulator's success for a reward that is missing. So this
route answers an abstention with a number, which the operator gives by `--abstention`. It is the
only route that does. docs/trainers/rlinf.md has the migration.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from prometheus_client import Counter

from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import NotFound, RewardFleetError
from rewardfleet.wire.validation import validate, validate_json
from rewardfleet.wire.video import RlinfRequest, RlinfScore, VideoRequest, VideoScore
from rewardfleet_server.engine import Engine
from rewardfleet_server.http.routes import Route
from rewardfleet_server.observe.telemetry import RequestContext

log = logging.getLogger(__name__)

_MAX_CAUSES = 100  #: causes that are reported; callers can make up names of judges


class Refusals:
    """Logs loudly, once for each cause, that the requests of a trainer are refused.

    The original client takes the simulator's success for a reward that is refused, and the training
    goes on: nothing else would be noticed.
    """

    def __init__(self) -> None:
        self._causes: set[str] = set()

    def of(
        self, cause: str, error: RewardFleetError, advice: str | None = None
    ) -> RewardFleetError:
        """Report a cause, and return its error to be raised.

        Args:
            advice: What to do, without what logs must not show; None if the error says it.
        """
        if cause not in self._causes and len(self._causes) < _MAX_CAUSES:
            self._causes.add(cause)
            log.error(
                "REQUESTS ARE REFUSED, and RLinf-RLAIF's client then trains on the SIMULATOR'S "
                "SUCCESS: %s",
                advice or error.detail,
            )
        return error


class RlinfApi:
    """Answers the original client.

    Args:
        abstention: The score of a clip on which the judge abstains; None to refuse all requests.
        refusals: Reports that requests are refused.
        judges: The names of the loaded judges.
    """

    def __init__(self, abstention: float | None, refusals: Refusals, judges: Iterable[str]) -> None:
        self._abstention = abstention
        self._refusals = refusals
        #: Counts what no judge has scored.
        self.replaced = Counter(
            "rewardfleet_replaced_abstentions",
            "Abstentions that /rlinf/score answered with the number of --abstention.",
            ("backend",),
            registry=None,
        )
        for name in judges:  # 0 from the start, so that the first one is an increase
            self.replaced.labels(name)

    def routes(self, engine: Engine[VideoRequest, VideoScore]) -> Sequence[Route[Any]]:
        """Return the route, also at the path without `/score`."""
        paths = {
            "/rlinf/score": "Score a clip; the original LIBERO reward server's format",
            "/rlinf": "The same, for an `endpoint` that ends here",
        }
        score = partial(self._score, engine)
        return [Route(*each, RlinfRequest, RlinfScore, score, _decode) for each in paths.items()]

    async def _score(
        self,
        engine: Engine[VideoRequest, VideoScore],
        request: VideoRequest,
        context: RequestContext,
    ) -> RlinfScore:
        if self._abstention is None:
            closed = NotFound(
                "/rlinf/score is closed: start the service with --abstention and a number in "
                "[0, 1], the score of clips on which the judge abstains"
            )
            raise self._refusals.of("rlinf", closed)
        found = await engine.score_item(request, context)
        if found.score is None:
            self.replaced.labels(found.backend).inc()
        return RlinfScore(
            score=self._abstention if found.score is None else found.score,
            model_output=found.model_output,
            backend=found.backend,
            abstained=found.score is None,
            cause=found.cause if isinstance(found.cause, VideoCause) else None,
        )


def _decode(body: bytes) -> VideoRequest:
    return validate(VideoRequest, validate_json(RlinfRequest, body).model_dump())
